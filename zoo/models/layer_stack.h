// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layers of a model, or those of a pipeline's stage.

#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/model.h"

#include <vector>

namespace tessera::zoo {

/// So many layers with the same options.
std::vector<TransformerLayerOptions> equal_layers(
    const TransformerLayerOptions& layer,
    int64_t count);

/// Layers of these numbers, none of which is recomputed at first.
/// @param options of all layers of the model, or of one half of it.
/// @param before layers of the model before that half.
TransformerLayers make_layers(
    const LayerContext& context,
    const std::vector<TransformerLayerOptions>& options,
    const std::vector<int>& numbers,
    int before = 0);

/// The layers [begin, end) on state.hidden.
/// @param entered also adds what enters each of them to state.entered.
void run_range(
    TransformerLayers& layers,
    int begin,
    int end,
    const LayerInput& input,
    bool entered,
    LayerState& state);

} // namespace tessera::zoo
