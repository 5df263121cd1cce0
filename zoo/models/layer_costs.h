// SPDX-License-Identifier: Apache-2.0
#pragma once
// What layers cost beside each other, for cutting a model into stages.

#include "tessera/pipeline/partition.h"
#include "tessera/zoo/layers/transformer_layer.h"

#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// Times in multiply-adds of a token's forward: those of products with weights,
/// to which backward is proportional. Attention's own grow with the length of
/// sequences, which is not known, and are left out.
/// @param end weights that a token is multiplied by behind the last layer: a
///     head's.
std::vector<LayerCost> layer_costs(
    const std::vector<TransformerLayerOptions>& layers,
    int64_t end = 0);

} // namespace tessera::zoo
