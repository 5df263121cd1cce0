// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ViT and those who followed it have in common.

#include "tessera/zoo/models/image_encoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>

namespace tessera::zoo {

/// One layer, from fields whose names begin with `prefix` ("decoder_" for those
/// of MAE's decoder).
TransformerLayerOptions vit_layer(
    const ConfigFields& fields,
    const std::string& prefix = {});

/// Patches, layers and norm.
ImageEncoderConfig vit_like_config(const ConfigFields& fields);

/// Lines of TransformerLayers `ours`, which are `theirs`.
std::vector<NameRule> vit_layer_names(
    const std::string& theirs,
    const std::string& ours);

/// Embeddings, layers, norm and pooler.
NameTable vit_like_names(bool is_base);

} // namespace tessera::zoo
