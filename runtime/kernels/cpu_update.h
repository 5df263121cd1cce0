// SPDX-License-Identifier: Apache-2.0
#pragma once
// `run_cpu_updates()` runs updates of flat shards on the threads of the update
// pool.

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::runtime {

/// The update of one shard, as a function of a range of its elements.
struct CpuUpdate {
  int64_t numel = 0;
  /// Updates elements [begin, end), independently of all others and in any
  /// order. begin is a multiple of kUpdateChunk.
  /// @return whether all gradients were finite.
  std::function<bool(int64_t begin, int64_t end)> range;
};

/// Elements that one thread updates at a time. This takes about a millisecond,
/// so that the cost of starting a task and of waiting for the last one does not
/// matter.
inline constexpr int64_t kUpdateChunk = 1 << 16;

/// Runs the updates on the threads of the pool, ahead of queued jobs; updates
/// too small for that run on the calling thread. Blocks.
/// @return whether all gradients were finite.
bool run_cpu_updates(const std::vector<CpuUpdate>& updates);

} // namespace tessera::runtime
