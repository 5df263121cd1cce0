// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GgufModel` describes a model to llama.cpp: the metadata of a GGUF file, and
// how its tensors differ from those of the checkpoint.

#include "tessera/zoo/gguf/gguf_writer.h"
#include "tessera/zoo/models/model.h"

#include <map>
#include <string>

namespace tessera::zoo {

/// Returned by describe_gguf().
struct GgufModel {
  /// "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "chatglm", "glm4",
  /// "gpt2"
  std::string architecture;
  GgufMetadata metadata; ///< "<architecture>.block_count", ...
  int64_t vocab = 0;
  int64_t experts = 0; ///< per layer, stored as one tensor
  /// The number of heads of projections whose rows are reordered, by the end of
  /// the projection's name here: in some architectures llama.cpp rotates pairs
  /// of neighboring features, where transformers rotates halves.
  std::map<std::string, int64_t> paired_heads;
  /// Tensors that are not in the checkpoint.
  std::map<std::string, at::Tensor> more;
};

/// @throws tessera::Error if the model belongs to another family, or if
///     llama.cpp does not implement the variant.
GgufModel describe_gguf(const Model& model);

} // namespace tessera::zoo
