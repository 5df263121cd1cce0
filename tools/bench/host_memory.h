// SPDX-License-Identifier: Apache-2.0
#pragma once
// measure_host_memory() measures the bandwidth of host memory per NUMA node.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::tools {

/// Bytes per second that the program requests: cache lines read before they are
/// written are not counted.
struct MemoryBandwidth {
  int threads = 0;
  double read = 0;
  double write = 0;
  double triad = 0; ///< two arrays read, one written
  double update = 0; ///< see update_memory()
};

struct NumaNodeBandwidth {
  int node = 0; ///< the system's node number
  int cores = 0; ///< that this process may use
  uint64_t memory_bytes = 0;
  std::vector<MemoryBandwidth> by_threads; ///< ascending in threads
};

struct HostBandwidthOptions {
  /// Size of each of the four arrays; must exceed the caches.
  size_t array_bytes = size_t{256} << 20;
  double seconds = 4; ///< for all nodes
};

/// Measures with 1, 2, 4, ... threads, one per core, up to all cores of a node;
/// threads and memory are bound to the node. Blocks.
std::vector<NumaNodeBandwidth> measure_host_memory(
    const HostBandwidthOptions& options);

} // namespace tessera::tools
