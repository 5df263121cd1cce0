// SPDX-License-Identifier: Apache-2.0
#pragma once
// What llama.cpp calls a model's tensors and fields.

#include "tessera/zoo/gguf/gguf_writer.h"
#include "tessera/zoo/models/model.h"

#include <functional>
#include <map>
#include <string>

namespace tessera::zoo {

/// A model as a GGUF file describes it.
struct GgufModel {
  std::string architecture; ///< "llama", "qwen2", "qwen3", "gpt2"
  GgufMetadata metadata; ///< "<architecture>.block_count", ...
  /// Heads of a projection whose rows are put in another order, by the end of
  /// its name here: llama.cpp rotates pairs of neighbours in some
  /// architectures, where transformers rotates halves.
  std::map<std::string, int64_t> paired_heads;
  /// Tensors that the checkpoint does not have.
  std::map<std::string, at::Tensor> more;
};

/// @throws tessera::Error when the model is of another family, or of a variant
///     that llama.cpp does not compute.
GgufModel describe_gguf(const Model& model);

/// llama.cpp's name of a tensor of transformers.
/// @throws tessera::Error when it has none.
std::string gguf_name(
    const std::string& architecture,
    const std::string& theirs);

} // namespace tessera::zoo
