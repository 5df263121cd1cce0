// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/swin_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/vision/image_fields.h"

#include <torch/types.h>

#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

/// As layer_costs(), times the tokens of an image; a merge leaves a quarter of
/// them.
std::vector<pipeline::LayerCost> costs_of(
    const std::vector<WindowLayerOptions>& layers) {
  std::vector<pipeline::LayerCost> costs;
  double tokens = 1;
  for (const WindowLayerOptions& layer : layers) {
    const auto features = static_cast<double>(layer.norm.features);
    const auto inner = static_cast<double>(layer.feed_forward.inner);
    pipeline::LayerCost cost{tokens * features * (4 * features + 2 * inner)};
    if (layer.merges) {
      tokens /= 4;
      cost.time += tokens * 4 * features * 2 * features;
    }
    costs.push_back(cost);
  }
  return costs;
}

WindowLayers make_window_layers(
    const LayerContext& context,
    const std::vector<WindowLayerOptions>& options,
    const std::vector<int>& numbers) {
  std::vector<WindowLayer> layers;
  for (const int number : numbers) {
    const sharding::NumberedInit init(number);
    layers.emplace_back(
        context.numbered(number), options[static_cast<size_t>(number)]);
  }
  return WindowLayers(
      layers,
      CheckpointOptions{.use_checkpoint = false},
      /*blocks_per_checkpoint=*/1,
      numbers);
}

} // namespace

SwinModel::SwinModel(
    const SwinModelConfig& config,
    ImageHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : Model(
          std::move(json),
          std::move(names),
          pipeline::StageLayers(context.place(), costs_of(config.layers)),
          {"classifier.", "decoder.", "embeddings.mask_token"}),
      swin_(config),
      head_kind_(head),
      context_(context) {
  swin_.patches.mask_token = head == ImageHead::kMasked;
  if (stage().has_first()) {
    embeddings_ = register_module("embeddings", PatchEmbedding(swin_.patches));
  }
  layers_ = register_module(
      "layers", make_window_layers(context_, config.layers, stage().own()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

void SwinModel::make_end() {
  norm_ = register_module("norm", Norm(swin_.norm));
  const int64_t features = swin_.norm.features;
  if (head_kind_ == ImageHead::kClassification) {
    // Every rank computes it from whole hidden states.
    classifier_ = Linear::column(
        *this,
        "classifier",
        LayerContext(),
        {features, swin_.classifier.labels, true, 1, swin_.deviation});
  } else if (head_kind_ == ImageHead::kMasked) {
    decoder_ = register_module(
        "decoder",
        PixelDecoder(PixelDecoderOptions{
            features,
            swin_.patches.channels,
            swin_.encoder_stride,
            swin_.deviation}));
  }
}

bool SwinModel::begins_stage(int layer) const {
  return layer == 0 || swin_.layers[static_cast<size_t>(layer) - 1].merges;
}

std::unique_ptr<Head> SwinModel::head() {
  return image_head(head_kind_, swin_.patches, swin_.classifier);
}

void SwinModel::check(const ModelInput& input) const {
  check_image_arguments(input, head_kind_);
  if (stage().has_first()) {
    embeddings_->check(input.pixel_values, interpolates(input));
  }
}

at::Tensor SwinModel::embed(const ModelInput& input) {
  const at::Tensor x = context_.dropout(
      embeddings_->forward(input.pixel_values, masked_patches(input)),
      swin_.embedding_dropout,
      is_training());
  const ImageSize grid = swin_.patches.grid(image_size_of(input.pixel_values));
  return x.unflatten(1, {grid.height, grid.width});
}

LayerState SwinModel::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    state.hidden = embed(input);
  }
  for (int layer = begin; layer < end; ++layer) {
    if (input.hidden_states && begins_stage(layer)) {
      state.entered.push_back(state.hidden);
    }
    state.hidden = layers_->forward_range(layer, layer + 1, state.hidden);
  }
  return state;
}

ModelOutput SwinModel::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  if (input.hidden_states) {
    std::vector<at::Tensor> maps = state.entered;
    maps.push_back(state.hidden);
    for (size_t i = 0; i < maps.size(); ++i) {
      output.hidden_states.push_back(maps[i].flatten(1, 2));
      output.others["reshaped_hidden_states." + std::to_string(i)] =
          maps[i].permute({0, 3, 1, 2});
    }
  }
  const at::Tensor last = norm_->forward(state.hidden.flatten(1, 2));
  switch (head_kind_) {
    case ImageHead::kBase:
      output.last_hidden_state = last;
      output.pooler_output = last.mean(1);
      break;
    case ImageHead::kClassification:
      add_image_classes(
          input, classifier_.forward(last.mean(1)), swin_.classifier, output);
      break;
    case ImageHead::kMasked:
      add_reconstruction(
          input, decoder_->forward(last), swin_.patches.patch, output);
  }
  return output;
}

} // namespace tessera::zoo
