// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NvmeStore` keeps flat tensors in a file.

#include "tessera/offload/stores/block_pipeline.h"
#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/stores/scratch_file.h"
#include "tessera/runtime/memory/shard_store.h"

#include <filesystem>
#include <optional>

namespace tessera::offload {

struct NvmeOptions {
  /// An existing folder on a local disk.
  std::filesystem::path folder;
  /// The most bytes that may be reserved on this rank; nothing: the free space
  /// of the disk.
  std::optional<int64_t> limit_bytes;
};

/// The file tier: one file per rank (see ScratchFile, BlockPipeline).
class NvmeStore : public runtime::ShardStore {
 public:
  /// @param memory for blocks in flight.
  /// @param ledger counts reserved bytes.
  /// @param calls like the others, must outlive the store.
  /// @throws tessera::Error if the file cannot be created.
  NvmeStore(
      const NvmeOptions& options,
      HostMemory& memory,
      MemoryLedger& ledger,
      const IoCalls& calls = system_io_calls());

  MemoryTier tier() const override {
    return MemoryTier::kNvme;
  }
  std::unique_ptr<runtime::StoredShard> reserve(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype) override;

  const ScratchFile& file() const {
    return file_;
  }

 private:
  NvmeOptions options_;
  MemoryLedger& ledger_;
  ScratchFile file_;
  BlockPipeline pipeline_;
};

} // namespace tessera::offload
