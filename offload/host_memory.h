// SPDX-License-Identifier: Apache-2.0
#pragma once
// Long-lived memory of the host, in exact sizes, with a hard limit.

#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

struct HostMemoryOptions {
  /// All that may be allocated on this rank; nothing: what the system has.
  std::optional<int64_t> limit_bytes;
  /// The device it is for: pinned and near it where it is a CUDA device.
  c10::Device device = c10::kCPU;
};

/// Every slab is a mapping of its own, of whole pages, huge ones where the
/// system offers them. The first one that cannot be pinned is warned of; it and
/// the later ones stay pageable, which makes copies slower and never wrong.
class HostMemory {
 public:
  /// Slabs are multiples of this, and aligned to it.
  static constexpr int64_t kPage = 4096;

  /// @param ledger counts slabs as host memory; outlives this object.
  HostMemory(const HostMemoryOptions& options, MemoryLedger& ledger);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// [bytes] uint8, zeros. It may outlive this object.
  /// @param name of what it is for, in errors.
  /// @throws tessera::Error when the limit or the system does not have so much.
  at::Tensor allocate(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t bytes);

  /// What a slab of `bytes` takes.
  static int64_t rounded(int64_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
  }
  /// What is left below the limit; the largest number without one.
  int64_t free_bytes() const;

  const HostMemoryOptions& options() const {
    return options_;
  }

 private:
  bool pin(void* data, int64_t bytes);

  HostMemoryOptions options_;
  MemoryLedger& ledger_;
  std::shared_ptr<std::atomic<int64_t>> used_;
  bool pins_;
};

} // namespace tessera
