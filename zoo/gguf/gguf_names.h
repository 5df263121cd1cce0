// SPDX-License-Identifier: Apache-2.0
#pragma once
// What llama.cpp calls a model's tensors.

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

/// Where a tensor of transformers goes in a GGUF file.
struct GgufPlace {
  std::string name;
  /// It is this one of the matrices of all experts, which are one tensor.
  std::optional<int64_t> expert;
};

/// @param architecture llama.cpp's, see GgufModel.
/// @param theirs a name of transformers, with ".weight" or ".bias".
/// @throws tessera::Error when llama.cpp has no such tensor.
GgufPlace gguf_place(
    const std::string& architecture,
    const std::string& theirs);

} // namespace tessera::zoo
