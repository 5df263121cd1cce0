// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration and names that ViT and its successors share.

#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/vision/image_encoder.h"

#include <string>

namespace tessera::zoo {

/// Reads one layer from fields whose names begin with `prefix` ("decoder_" for
/// MAE's decoder).
TransformerLayerOptions vit_layer(
    const ConfigFields& fields,
    const std::string& prefix = {});

/// Reads patches, layers and norm.
ImageEncoderConfig vit_like_config(const ConfigFields& fields);

/// Name table rows that map the TransformerLayers `foreign` to `native`.
std::vector<NameRule> vit_layer_names(
    const std::string& foreign,
    const std::string& native);

/// The names of embeddings, layers, norm and pooler.
NameTable vit_like_names(bool is_base);

} // namespace tessera::zoo
