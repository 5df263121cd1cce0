// SPDX-License-Identifier: Apache-2.0
#pragma once
// layer_costs() estimates the relative cost of layers, for partitioning a model
// into pipeline stages.

#include "tessera/pipeline/partition.h"
#include "tessera/zoo/layers/transformer_layer.h"

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// Times are multiply-adds of one token's forward through weight matrices, to
/// which backward is proportional. Attention products, which grow with the
/// unknown sequence length, are not included.
/// @param end weights that a token is multiplied by after the last layer: the
///     head's.
std::vector<pipeline::LayerCost> layer_costs(
    const std::vector<TransformerLayerOptions>& layers,
    int64_t end = 0);

} // namespace tessera::zoo
