// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/models/layer_stack.h"

#include "tessera/sharding/parallel/numbered_init.h"

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

void run_range(
    TransformerLayers& layers,
    int begin,
    int end,
    const LayerInput& input,
    bool entered,
    LayerState& state) {
  if (!entered) {
    state.hidden = layers->forward_range(begin, end, state.hidden, input);
    return;
  }
  auto states =
      layers->forward_range_with_hidden_states(begin, end, state.hidden, input);
  for (const at::Tensor& one : states.entered.unbind(0)) {
    state.entered.push_back(one);
  }
  state.hidden = states.output;
}

} // namespace tessera::zoo
