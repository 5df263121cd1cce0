// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostMemory` allocates long-lived host memory in exact sizes, with a hard
// limit.

#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::offload {

struct HostMemoryOptions {
  /// The most bytes that may be allocated on this rank; nothing: what the
  /// system has.
  std::optional<int64_t> limit_bytes;
  /// The device that the memory serves: pinned and near it unless it is the
  /// CPU.
  c10::Device device = c10::kCPU;
};

/// Every slab is a separate mapping of whole pages, huge ones if the system
/// offers them. If a slab cannot be pinned, a warning is logged once; it and
/// later ones stay pageable, which makes copies slower but not wrong.
class HostMemory {
 public:
  /// Slabs are multiples of this, and aligned to it.
  static constexpr int64_t kPage = 4096;

  /// @param ledger counts slabs as host memory; must outlive this object.
  HostMemory(const HostMemoryOptions& options, MemoryLedger& ledger);
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// Allocates [bytes] uint8, zeros. The tensor may outlive this object.
  /// @param name the purpose of the memory, for errors.
  /// @throws tessera::Error if the limit or the system does not have this much.
  at::Tensor allocate(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t bytes);

  /// The bytes that a slab of `bytes` occupies.
  static int64_t rounded(int64_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
  }
  /// Bytes left below the limit; the largest number if there is none.
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

} // namespace tessera::offload
