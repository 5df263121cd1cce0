// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/window_layer.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/layers/drop_path.h"
#include "tessera/zoo/layers/windows.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::zoo {

namespace {

ImageSize size_of(const at::Tensor& map) {
  return {map.size(1), map.size(2)};
}

} // namespace

PatchMergingImpl::PatchMergingImpl(
    const LayerContext& context,
    int64_t features,
    double deviation) {
  norm_ = register_module("norm", Norm(NormOptions{.features = 4 * features}));
  reduction_ = Linear::undivided(
      *this,
      "reduction",
      context,
      {4 * features, 2 * features, false, 1, deviation});
}

at::Tensor PatchMergingImpl::forward(const at::Tensor& map) {
  const at::Tensor even = padded_to_windows(map, 2);
  std::vector<at::Tensor> neighbours;
  for (const int64_t column : {0, 1}) {
    for (const int64_t row : {0, 1}) {
      neighbours.push_back(even.slice(1, row, std::nullopt, 2)
                               .slice(2, column, std::nullopt, 2));
    }
  }
  return reduction_.forward(norm_->forward(at::cat(neighbours, -1)));
}

WindowLayerImpl::WindowLayerImpl(
    const LayerContext& context,
    const WindowLayerOptions& options)
    : context_(context), options_(options) {
  TESSERA_CHECK(
      context.parallel() == nullptr || !context.parallel()->sequence,
      "WindowLayer: windows need whole feature maps, which sequence parallelism divides; turn it off");
  attention_norm_ = register_module("attention_norm", Norm(options.norm));
  attention_ =
      register_module("attention", Attention(context_, options.attention));
  feed_forward_norm_ = register_module("feed_forward_norm", Norm(options.norm));
  feed_forward_ = register_module(
      "feed_forward", FeedForward(context_, options.feed_forward));
  const int64_t distances = 2 * options.window - 1;
  position_bias_ = register_parameter(
      "position_bias",
      torch::empty({distances * distances, options.attention.heads})
          .normal_(0, options.deviation));
  if (options.merges) {
    merge_ = register_module(
        "merge",
        PatchMerging(context_, options.norm.features, options.deviation));
  }
}

at::Tensor WindowLayerImpl::bias(
    const ImageSize& padded,
    int64_t shift,
    int64_t rows) const {
  const int64_t window = options_.window;
  const int64_t area = window * window;
  const at::Tensor of_distances =
      position_bias_
          .index_select(
              0, window_distances(window, position_bias_.device()).flatten())
          .view({area, area, -1})
          .permute({2, 0, 1})
          .unsqueeze(0);
  if (shift == 0) {
    return of_distances;
  }
  const at::Tensor apart =
      shift_scores(padded, window, shift, of_distances.options());
  return (of_distances + apart.unsqueeze(1)).repeat({rows, 1, 1, 1});
}

at::Tensor WindowLayerImpl::attend(const at::Tensor& map) {
  const int64_t window = options_.window;
  const ImageSize size = size_of(map);
  const int64_t shift =
      std::min(size.height, size.width) > window ? options_.shift : 0;
  at::Tensor x = padded_to_windows(attention_norm_->forward(map), window);
  const ImageSize padded = size_of(x);
  if (shift > 0) {
    x = x.roll({-shift, -shift}, {1, 2});
  }
  AttentionInput input;
  input.bias = bias(padded, shift, map.size(0));
  x = context_.dropout(
      attention_->forward(to_windows(x, window), input),
      options_.dropout,
      is_training());
  x = from_windows(x, window, padded);
  if (shift > 0) {
    x = x.roll({shift, shift}, {1, 2});
  }
  return x.narrow(1, 0, size.height).narrow(2, 0, size.width);
}

at::Tensor WindowLayerImpl::forward(const at::Tensor& map) {
  const RandomLayerScope random = context_.random_scope(map.device());
  const ImageSize size = size_of(map);
  TESSERA_CHECK(
      std::min(size.height, size.width) >= options_.window,
      "WindowLayer: a feature map of {} x {} patches is smaller than a window of {} x {}; use larger images, or fewer Swin stages",
      size.height,
      size.width,
      options_.window,
      options_.window);
  at::Tensor x =
      map + drop_path(attend(map), options_.drop_path, is_training());
  x = x + context_.dropout(
              feed_forward_->forward(feed_forward_norm_->forward(x)),
              options_.dropout,
              is_training());
  return options_.merges ? merge_->forward(x) : x;
}

} // namespace tessera::zoo
