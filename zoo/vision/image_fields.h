// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that read config.json fields and batch arguments of image models.

#include "tessera/zoo/formats/config_fields.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/model.h"

namespace tessera::zoo {

/// Reads `image_size`, `patch_size` (a number or [height, width]) and
/// `num_channels`.
/// @throws Error if one is out of range: at most 65536 pixels for images, 1024
///     for patches, 1024 channels.
PatchEmbeddingOptions patch_fields(
    const ConfigFields& fields,
    int64_t image_size,
    int64_t patch_size);

/// Reads a list of positive numbers, such as `depths`.
/// @throws Error if it is empty, longer than 16, or contains anything other
///     than numbers from 1 to `most`.
std::vector<int64_t> number_list(
    const ConfigFields& fields,
    const char* name,
    const std::vector<int64_t>& otherwise,
    int64_t most);

/// Whether a batch requests positions interpolated to another image size: the
/// argument `interpolate_pos_encoding`, one number.
bool interpolates(const ModelInput& input);

} // namespace tessera::zoo
