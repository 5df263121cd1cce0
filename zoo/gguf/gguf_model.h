// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model as a GGUF file describes it to llama.cpp.

#include "tessera/zoo/gguf/gguf_writer.h"
#include "tessera/zoo/models/model.h"

#include <map>
#include <string>

namespace tessera::zoo {

/// Fields, and what tensors are besides those of the checkpoint.
struct GgufModel {
  /// "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "chatglm", "glm4",
  /// "gpt2"
  std::string architecture;
  GgufMetadata metadata; ///< "<architecture>.block_count", ...
  int64_t vocab = 0;
  int64_t experts = 0; ///< of a layer, in one tensor
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

} // namespace tessera::zoo
