// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/swin_model.h"

#include "tessera/sharding/lazy/numbered_init.h"

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
    : ImageModel(
          config,
          head,
          context,
          std::move(json),
          std::move(names),
          costs_of(config.layers)) {
  for (const WindowLayerOptions& layer : config.layers) {
    merges_.push_back(layer.merges);
  }
  layers_ = register_module(
      "layers", make_window_layers(context_, config.layers, stage().local()));
  if (stage().has_last()) {
    const sharding::NumberedInit init(stage().count());
    make_end();
  }
}

bool SwinModel::begins_stage(int layer) const {
  return layer == 0 || merges_[static_cast<size_t>(layer) - 1];
}

LayerState SwinModel::run_layers(
    const ModelInput& input,
    LayerState state,
    int begin,
    int end) {
  if (begin == 0) {
    const ImageSize grid =
        image_.patches.grid(image_size_of(input.pixel_values));
    state.hidden = embed(input).unflatten(1, {grid.height, grid.width});
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
  add_result(input, last, output);
  if (head_kind_ == ImageHead::kBase) {
    output.pooler_output = pooled(last);
  }
  return output;
}

} // namespace tessera::zoo
