// SPDX-License-Identifier: Apache-2.0
#pragma once
// The other ranks' processes: whether they live, and their memory.

#include "tessera/runtime/comm/shm_region.h"
#include "tessera/runtime/core/unique_fd.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// [Note: reading a peer's memory] process_vm_readv() copies from another
/// process's address space in one go, without a stop in shared memory. Where
/// the system forbids it (Yama's ptrace_scope, seccomp), data passes through
/// the payloads of the region in pieces.
class ShmPeers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    /// False: as if the system forbade it.
    bool read_directly = true;
    std::chrono::milliseconds timeout{};
  };

  /// Meets the other ranks in the region. Collective; blocks.
  /// @throws tessera::Error when a rank does not come within `timeout`; on all
  ///   ranks, when one of them cannot watch the others' processes.
  ShmPeers(const ShmRegion& region, const Options& options);

  /// Whether every rank may read every other one's memory.
  bool can_read() const {
    return can_read_;
  }

  /// False when the process has ended, whether or not somebody has reaped it.
  bool is_alive(int peer) const;

  /// Copies `bytes` bytes at `address` of the peer. @throws tessera::Error.
  void read(int peer, uint64_t address, std::byte* to, int64_t bytes) const;

 private:
  std::vector<int64_t> pids_;
  std::vector<UniqueFd> handles_; ///< pidfds; none for this rank
  bool can_read_ = false;
};

} // namespace tessera
