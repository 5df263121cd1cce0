// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmPeers` watches the processes of the other ranks and reads their memory.

#include "tessera/runtime/comm/shm_region.h"
#include "tessera/runtime/core/unique_fd.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// [Note: reading a peer's memory] process_vm_readv() copies directly from the
/// address space of another process, without an intermediate copy in shared
/// memory. Where the system forbids it (Yama's ptrace_scope, seccomp), data
/// passes through the payloads of the region in pieces.
class ShmPeers {
 public:
  struct Options {
    int rank = 0;
    int ranks = 1;
    /// False: behave as if the system forbade it.
    bool read_directly = true;
    std::chrono::milliseconds timeout{};
  };

  /// Connects to the other ranks through the region. Collective; blocks.
  /// @throws tessera::Error when a rank does not arrive within `timeout`, and
  ///   on all ranks when one of them cannot watch the processes of the others.
  ShmPeers(const ShmRegion& region, const Options& options);

  /// Whether every rank can read the memory of every other.
  bool can_read() const {
    return can_read_;
  }

  /// False once the process has ended, even if it has not been reaped.
  bool is_alive(int peer) const;

  /// Copies `bytes` bytes from `address` in the peer's memory.
  /// @throws tessera::Error when the system refuses.
  void read(int peer, uint64_t address, std::byte* to, int64_t bytes) const;

 private:
  std::vector<int64_t> pids_;
  std::vector<UniqueFd> handles_; ///< pidfds; none for this rank
  bool can_read_ = false;
};

} // namespace tessera::runtime
