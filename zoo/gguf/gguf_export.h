// SPDX-License-Identifier: Apache-2.0
#pragma once
// export_gguf() writes a language model to a GGUF file for llama.cpp.

#include "tessera/zoo/formats/weight_folder.h"
#include "tessera/zoo/gguf/gguf_writer.h"

#include <filesystem>
#include <string>

namespace tessera::zoo {

class Model;

struct GgufOptions {
  /// The type of matrices; see gguf_type_of().
  GgufType type = GgufType::kF16;
  /// A Hugging Face folder whose tokenizer is written to the file; empty: none.
  std::filesystem::path tokenizer_folder;
  std::string name; ///< "general.name"; may be empty
};

/// Writes a language model of one of the families that GgufModel lists to a
/// single file, with llama.cpp's names and element order. Processes one tensor
/// at a time, so a lazy model is never in memory as a whole. The file appears
/// whole or not at all; missing folders are created. Blocks on the disk.
/// @param model whole, not wrapped, not tensor-parallel.
/// @param change applied to each value, for example merged_values().
/// @throws tessera::Error if the model belongs to another family, if llama.cpp
///     does not implement the variant, or if the tokenizer is not supported.
void export_gguf(
    const Model& model,
    const std::filesystem::path& file,
    const GgufOptions& options = {},
    const SavedValue& change = {});

} // namespace tessera::zoo
