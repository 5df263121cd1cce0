// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models to GGUF files, which llama.cpp runs.

#include "tessera/zoo/gguf/gguf_writer.h"
#include "tessera/zoo/models/write_folder.h"

#include <filesystem>

namespace tessera::zoo {

struct GgufOptions {
  /// Of matrices; see gguf_type_of().
  GgufType type = GgufType::kF16;
  /// A Hugging Face folder whose tokenizer goes into the file; empty: none.
  std::filesystem::path tokenizer_folder;
  std::string name; ///< "general.name"; may be empty
};

/// Writes a language model of the families that GgufModel names to one file,
/// with llama.cpp's names and order of elements. Tensors go by one at
/// a time, those of a lazy model without ever being in memory together. The
/// file appears whole or not at all; missing folders are made. Blocks on the
/// disk.
/// @param model whole, not wrapped, not tensor-parallel.
/// @param change of values, such as merged_values().
/// @throws tessera::Error when the model is of another family, or of a variant
///     that llama.cpp does not compute; on a tokenizer that is not known here.
void export_gguf(
    const Model& model,
    const std::filesystem::path& file,
    const GgufOptions& options = {},
    const SavedValue& change = {});

} // namespace tessera::zoo
