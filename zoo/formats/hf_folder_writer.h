// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HfFolderWriter` writes a folder that transformers loads; copy_tokenizer()
// copies the tokenizer of one.

#include "tessera/runtime/io/atomic_folder.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <vector>

namespace tessera::zoo {

/// A Hugging Face folder: config.json; the tokenizer, generation and
/// preprocessing files of the tokenizer's folder, and the model code in it; and
/// the weights, which the caller writes. Nothing is visible before commit(),
/// and an existing folder stays until then. Used by one thread of one rank;
/// blocks on the disk.
class HfFolderWriter {
 public:
  /// @param config the content of config.json.
  /// @param tokenizer_folder the source of the tokenizer's files; empty to copy
  ///     none. May be `folder` itself.
  /// @throws Error if the disk is full, or if `folder` exists and contains
  ///     other files than these.
  HfFolderWriter(
      const std::filesystem::path& folder,
      const nlohmann::json& config,
      const std::filesystem::path& tokenizer_folder);

  /// Where to write the weights before commit(): to this file, or to several
  /// files next to it with an index.
  std::filesystem::path weights_path() const;

  /// Makes the folder durable and visible.
  /// @throws Error if the weights have not been written.
  void commit();

 private:
  runtime::AtomicFolder folder_;
};

/// Whether a folder has what Tokenizer::from_folder() reads; false for "".
bool has_tokenizer(const std::filesystem::path& folder);

/// The files, and folders, of the tokenizer in a folder.
std::vector<std::filesystem::path> tokenizer_files(
    const std::filesystem::path& folder);

/// Copies the files of a tokenizer. The copy's tokenizer_config.json names its
/// class, so that it is the same tokenizer beside any model.
/// @param from a folder, of which other files are left; a tokenizer.json; or a
///     .model of sentencepiece.
/// @param folder is created; it loses the tokenizer that it has.
/// @throws Error naming a file that cannot be read or written.
void copy_tokenizer(
    const std::filesystem::path& from,
    const std::filesystem::path& folder);

/// @throws Error if HfFolderWriter would refuse to replace `folder`.
void check_hf_folder(const std::filesystem::path& folder);

} // namespace tessera::zoo
