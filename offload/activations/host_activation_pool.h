// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostActivationPool` allocates host memory for saved tensors, whose sizes
// recur every step.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/memory/offset_allocator.h"
#include "tessera/runtime/memory/range_marks.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::offload {

/// A piece of host memory.
struct HostBlock {
  at::Tensor bytes; ///< [n] uint8, contiguous, uninitialized
  /// The work on the piece that its next user must wait for.
  runtime::StreamMarks after;
  size_t slab = 0; ///< the slab of HostActivationPool that it is from
  int64_t offset = 0;

  bool defined() const {
    return bytes.defined();
  }
};

/// Pieces of large slabs. Slabs are allocated from the system on demand and
/// kept, because pinning costs more than a copy. Lives as long as the last
/// graph that holds a piece, hence its own ledger. Not thread-safe.
class HostActivationPool {
 public:
  static constexpr int64_t kSlabBytes = int64_t{64} << 20;

  /// @param options the device whose tensors rest here, and the limit of all
  ///   slabs together.
  explicit HostActivationPool(const HostMemoryOptions& options);

  /// A piece of `bytes` bytes, or an undefined one if there is no room.
  HostBlock take(int64_t bytes);

  /// Frees the piece and leaves it undefined.
  void give_back(HostBlock& block);

  /// Bytes of all slabs.
  int64_t slab_bytes() const;

 private:
  struct Slab {
    at::Tensor buffer; ///< [capacity] uint8
    runtime::OffsetAllocator allocator;
    runtime::RangeMarks marks;
  };

  HostBlock take_from(size_t slab, int64_t bytes);
  bool add_slab(int64_t bytes);

  MemoryLedger ledger_;
  HostMemory memory_;
  std::vector<Slab> slabs_;
};

} // namespace tessera::offload
