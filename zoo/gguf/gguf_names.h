// SPDX-License-Identifier: Apache-2.0
#pragma once
// gguf_matrix() maps transformers' tensor names to llama.cpp's.

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::zoo {

/// The place of a transformers tensor in a GGUF file.
struct GgufMatrix {
  std::string name;
  /// The index of this expert's matrix in the tensor that stores all experts.
  std::optional<int64_t> expert;
};

/// @param architecture llama.cpp's name, see GgufModel.
/// @param foreign transformers' name, with ".weight" or ".bias".
/// @throws tessera::Error if llama.cpp has no such tensor.
GgufMatrix gguf_matrix(
    const std::string& architecture,
    const std::string& foreign);

} // namespace tessera::zoo
