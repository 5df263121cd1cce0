// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CheckpointSave` writes one checkpoint; what needs the engine and what needs
// the disk are apart, so that the second may run on another thread.

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/checkpoint/rank_file.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/io/atomic_folder.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera::engine {

class CheckpointSave {
 public:
  /// Lists what this rank writes, and prepares the folder. Collective; blocks.
  /// @param subject must outlive this object, unless a snapshot is taken.
  /// @param keep_last see Engine::save().
  CheckpointSave(
      const CheckpointSubject& subject,
      const std::filesystem::path& folder,
      int keep_last);

  /// See RankFile.
  int64_t snapshot_bytes() const {
    return file_->snapshot_bytes();
  }
  void take_snapshot(const at::Tensor& memory) {
    file_->take_snapshot(memory);
  }

  /// Writes the files and makes the checkpoint visible. Collective over
  /// `ranks`, all ranks of the job; blocks on the disk.
  /// @return the folder of the checkpoint.
  /// @throws tessera::Error on every rank if one of them fails.
  std::filesystem::path write(Communicator& ranks, const WaitCheck& check);

 private:
  /// Merges what the ranks reported about their files. On rank 0.
  void commit(int ranks);
  void prune() const;

  int rank_;
  int keep_last_;
  std::filesystem::path path_;
  CheckpointManifest manifest_; ///< without parameters and ranks
  SavedParameters parameters_; ///< those that this rank reports
  std::optional<RankFile> file_;
  std::optional<runtime::AtomicFolder> written_; ///< on rank 0
};

} // namespace tessera::engine
