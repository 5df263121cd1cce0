// SPDX-License-Identifier: Apache-2.0
#pragma once
// Writes a folder that transformers loads.

#include "tessera/zoo/atomic_folder.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace tessera::zoo {

/// A Hugging Face folder: config.json, those files of a tokenizer, of
/// generation and of preprocessing that the tokenizer's folder has, with the
/// code that belongs to the model, and the weights, which others write. Nothing
/// is visible before commit(), and the folder that was there stays till then.
/// Used by one thread of one rank; blocks on the disk.
class HfFolderWriter {
 public:
  /// @param config the content of config.json.
  /// @param tokenizer_folder where the tokenizer's files are copied from;
  /// empty to copy none. May be `folder` itself.
  /// @throws Error when the disk is full, or when `folder` exists and holds
  /// other files than these.
  HfFolderWriter(
      const std::filesystem::path& folder,
      const nlohmann::json& config,
      const std::filesystem::path& tokenizer_folder);

  /// Where the weights are to be written before commit(): there, or in several
  /// files beside it with an index.
  std::filesystem::path weights_path() const;

  /// Makes the folder durable and visible.
  /// @throws Error when the weights have not been written.
  void commit();

 private:
  AtomicFolder folder_;
};

/// @throws Error when a HfFolderWriter would not replace what is there.
void check_hf_folder(const std::filesystem::path& folder);

} // namespace tessera::zoo
