// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/image_encoder.h"

#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/zoo/models/layer_costs.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/types.h>

#include <utility>

namespace tessera::zoo {

ImageEncoder::ImageEncoder(
    const ImageEncoderConfig& config,
    ImageHead head,
    const LayerContext& context,
    nlohmann::json json,
    NameTable names)
    : ImageModel(
          config,
          head,
          context,
          std::move(json),
          std::move(names),
          layer_costs(config.layers)),
      has_pooler_(head == ImageHead::kBase && config.pooler_features > 0),
      pooler_activation_(activation(config.pooler_activation)) {
  check_divides_tokens(image_.patches.tokens());
  layers_ = register_module(
      "layers", make_layers(context_, config.layers, stage().local()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
    if (has_pooler_) {
      pooler_ = Linear::full(
          *this,
          "pooler",
          {image_.norm.features,
           config.pooler_features,
           true,
           1,
           image_.deviation});
    }
  }
}

void ImageEncoder::check(const ModelInput& input) const {
  ImageModel::check(input);
  if (stage().has_first()) {
    check_divides_tokens(
        image_.patches.grid(image_size_of(input.pixel_values)).area() + 1);
  }
}

LayerState ImageEncoder::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    state.hidden = embed(input);
  }
  run_range(layers_, begin, end, {}, input.hidden_states, state);
  return state;
}

ModelOutput ImageEncoder::output(
    const ModelInput& input,
    const LayerState& state) {
  ModelOutput output;
  if (input.hidden_states) {
    output.hidden_states =
        hidden_states(state.entered, context_.full(state.hidden));
  }
  const at::Tensor last = context_.full(norm_->forward(state.hidden));
  add_result(input, last, output);
  if (has_pooler_) {
    output.pooler_output = pooler_activation_(pooler_.forward(pooled(last)));
  }
  return output;
}

} // namespace tessera::zoo
