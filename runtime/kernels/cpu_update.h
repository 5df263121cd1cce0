// SPDX-License-Identifier: Apache-2.0
#pragma once
// Updates of flat shards on the threads of the update pool.

#include <cstdint>
#include <functional>
#include <vector>

namespace tessera {

/// The update of one shard as a function of its elements.
struct CpuUpdate {
  int64_t numel = 0;
  /// Updates elements [begin, end), alone and in any order. begin is a multiple
  /// of kUpdateChunk. @return whether all gradients were finite.
  std::function<bool(int64_t begin, int64_t end)> range;
};

/// Elements that one thread updates at a time: about a millisecond's work, so
/// that neither starting a task nor waiting for the last one matters.
inline constexpr int64_t kUpdateChunk = 1 << 16;

/// Runs the updates on the pool's threads, before what is queued there; what is
/// too small to be worth that, on the calling thread. Blocks.
/// @return whether all gradients were finite.
bool run_cpu_updates(const std::vector<CpuUpdate>& updates);

} // namespace tessera
