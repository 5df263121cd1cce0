// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_named_tensors() reads a model's arguments from JSON or safetensors;
// write_named_tensors() writes its results to safetensors.

#include "tessera/zoo/inputs/model_input.h"

#include <filesystem>

namespace tessera::zoo {

/// Reads all tensors of a .safetensors file, or of a JSON object of nested
/// lists of numbers, such as {"input_ids": [[5, 7]], "attention_mask": [[1,
/// 1]]}: int64 if all numbers are integers, else float32.
/// @throws tessera::Error naming the file, the tensor and the position where
///     lists differ in length or contain anything else.
NamedTensors read_named_tensors(const std::filesystem::path& path);

/// Writes the tensors to one safetensors file; missing folders are created.
/// Blocks on the disk.
void write_named_tensors(
    const std::filesystem::path& path,
    const NamedTensors& tensors);

} // namespace tessera::zoo
