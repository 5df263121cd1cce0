// SPDX-License-Identifier: Apache-2.0
#pragma once
// What models of images read from config.json, and from a batch.

#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/config_fields.h"
#include "tessera/zoo/models/model.h"

namespace tessera::zoo {

/// `image_size`, `patch_size` (a number or [height, width]) and `num_channels`.
/// @throws Error when one is out of range: at most 65536 pixels for images,
///     1024 for patches, 1024 channels.
PatchEmbeddingOptions patch_fields(
    const ConfigFields& fields,
    int64_t image_size,
    int64_t patch_size);

/// A list of positive numbers, such as `depths`.
/// @throws Error when it is empty, longer than 16, or holds anything else than
///     numbers from 1 to `most`.
std::vector<int64_t> number_list(
    const ConfigFields& fields,
    const char* name,
    const std::vector<int64_t>& otherwise,
    int64_t most);

/// Whether a batch asks for positions of another image size: the argument
/// `interpolate_pos_encoding`, one number.
bool interpolates(const ModelInput& input);

} // namespace tessera::zoo
