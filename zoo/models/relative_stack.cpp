// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/relative_stack.h"

#include "tessera/sharding/lazy/numbered_init.h"

#include <torch/types.h>

#include <utility>

namespace tessera::zoo {

RelativeStackImpl::RelativeStackImpl(
    const LayerContext& context,
    const RelativeStackOptions& options,
    const std::vector<int>& numbers)
    : context_(context), options_(options) {
  layers_ = register_module(
      "layers",
      make_layers(context_, options_.layers, numbers, options_.before));
  if (numbers.front() == 0) {
    const sharding::NumberedInit init(-1 - options_.before);
    relative_bias_ = register_module(
        "relative_bias",
        torch::nn::Embedding(
            options_.buckets.buckets + options_.segments * options_.segments,
            options_.layers.front().attention.heads));
    const torch::NoGradGuard no_grad;
    relative_bias_->weight.normal_(0, options_.bias_deviation);
  }
  if (numbers.back() + 1 == static_cast<int>(options_.layers.size())) {
    norm_ = register_module("norm", Norm(options_.norm));
  }
}

at::Tensor RelativeStackImpl::bias(
    int64_t length,
    const at::Device& device,
    int64_t past) {
  return bias(
      relative_buckets(length, past + length, options_.buckets, device, past)
          .unsqueeze(0));
}

at::Tensor RelativeStackImpl::bias(const at::Tensor& rows) {
  return relative_bias_->forward(rows).permute({0, 3, 1, 2});
}

void RelativeStackImpl::run(
    int begin,
    int end,
    LayerInput input,
    bool entered,
    LayerState& state) {
  input.bias = state.bias;
  run_range(layers_, begin, end, input, entered, state);
}

at::Tensor RelativeStackImpl::finish(const at::Tensor& hidden) {
  return context_.dropout(
      norm_->forward(hidden), options_.dropout, is_training());
}

} // namespace tessera::zoo
