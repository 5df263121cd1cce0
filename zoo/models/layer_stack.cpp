// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/layer_stack.h"

#include "tessera/sharding/lazy/numbered_init.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <torch/types.h>

namespace tessera::zoo {

std::vector<TransformerLayerOptions> equal_layers(
    const TransformerLayerOptions& layer,
    int64_t count) {
  return {static_cast<size_t>(count), layer};
}

TransformerLayers make_layers(
    const LayerContext& context,
    const std::vector<TransformerLayerOptions>& options,
    const std::vector<int>& numbers,
    int before) {
  std::vector<TransformerLayer> layers;
  for (const int number : numbers) {
    const sharding::NumberedInit init(before + number);
    layers.emplace_back(
        context.numbered(before + number),
        options[static_cast<size_t>(number)]);
  }
  return TransformerLayers(
      layers,
      CheckpointOptions{.use_checkpoint = false},
      /*blocks_per_checkpoint=*/1,
      numbers);
}

namespace {

/// Runs one layer on the tokens at `token_indices`; the others pass it by.
at::Tensor run_at_tokens(
    TransformerLayers& layers,
    int number,
    const at::Tensor& hidden,
    const LayerInput& input,
    const at::Tensor& token_indices) {
  const LayerContext& context = layers->block(0)->context();
  // Tokens may be divided, and are again where the layer takes them.
  const at::Tensor full = full_tensor(hidden);
  const at::Tensor index =
      token_indices.unsqueeze(-1).expand({-1, -1, full.size(-1)});
  const at::Tensor made = layers->forward_range(
      number,
      number + 1,
      context.between(full.gather(1, index)),
      input.at_tokens(token_indices));
  return context.between(full.scatter(1, index, full_tensor(made)));
}

void run_layer(
    TransformerLayers& layers,
    int number,
    const LayerInput& input,
    LayerState& state,
    const StepDrops& drops) {
  if (!drops.keeps_layer(number)) {
    return;
  }
  LayerInput layer_input = input;
  layer_input.scale = drops.scale_of(number);
  const at::Tensor token_indices = drops.tokens_of(
      number,
      state.hidden.size(0),
      state.hidden.size(1),
      state.hidden.device());
  state.hidden =
      token_indices.defined()
          ? run_at_tokens(
                layers, number, state.hidden, layer_input, token_indices)
          : layers->forward_range(
                number, number + 1, state.hidden, layer_input);
}

} // namespace

void run_range(
    TransformerLayers& layers,
    int begin,
    int end,
    const LayerInput& input,
    bool entered,
    LayerState& state,
    const StepDrops& drops) {
  if (!drops.any() && !entered) {
    state.hidden = layers->forward_range(begin, end, state.hidden, input);
    return;
  }
  if (!drops.any()) {
    auto states = layers->forward_range_with_hidden_states(
        begin, end, state.hidden, input);
    for (const at::Tensor& one : states.entered.unbind(0)) {
      state.entered.push_back(one);
    }
    state.hidden = states.output;
    return;
  }
  for (int number = begin; number < end; ++number) {
    if (entered) {
      state.entered.push_back(state.hidden);
    }
    run_layer(layers, number, input, state, drops);
  }
}

} // namespace tessera::zoo
