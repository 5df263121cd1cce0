// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's arguments from JSON, and its results to safetensors.

#include "tessera/zoo/models/model.h"

#include <filesystem>

namespace tessera::zoo {

/// All tensors of a .safetensors file; or from an object of nested lists of
/// numbers, such as {"input_ids": [[5, 7]], "attention_mask": [[1, 1]]}: int64
/// where all numbers are whole, float32 where one is not.
/// @throws tessera::Error naming the file, the tensor and the place where lists
///     are of different lengths or hold something else.
NamedTensors read_named_tensors(const std::filesystem::path& path);

/// Writes them to one safetensors file; missing folders are made. Blocks on the
/// disk.
void write_named_tensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors);

} // namespace tessera::zoo
