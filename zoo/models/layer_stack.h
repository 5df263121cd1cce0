// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that construct and run the layers of a model or of one pipeline
// stage.

#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/models/step_drops.h"

#include <vector>

namespace tessera::zoo {

/// `count` layers with the same options.
std::vector<TransformerLayerOptions> equal_layers(
    const TransformerLayerOptions& layer,
    int64_t count);

/// Constructs the layers with these numbers; initially none is recomputed.
/// @param options of all layers of the model, or of one half of it.
/// @param before number of layers of the model before that half.
TransformerLayers make_layers(
    const LayerContext& context,
    const std::vector<TransformerLayerOptions>& options,
    const std::vector<int>& numbers,
    int before = 0);

/// Runs the layers [begin, end) on state.hidden.
/// @param entered also appends the input of each to state.entered.
/// @param drops of layers whose numbers are those of the whole model.
void run_range(
    TransformerLayers& layers,
    int begin,
    int end,
    const LayerInput& input,
    bool entered,
    LayerState& state,
    const StepDrops& drops = {});

} // namespace tessera::zoo
