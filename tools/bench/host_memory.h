// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bandwidth of the host's memory, NUMA node by NUMA node.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::tools {

/// Bytes per second that the program asks for: what a cache reads before it
/// writes is not counted.
struct MemoryBandwidth {
  int threads = 0;
  double read = 0;
  double write = 0;
  double triad = 0; ///< two arrays read, one written
  double update = 0; ///< see update_memory()
};

struct NumaNodeBandwidth {
  int node = 0; ///< the system's number
  int cores = 0; ///< that this process may run on
  uint64_t memory_bytes = 0;
  std::vector<MemoryBandwidth> by_threads; ///< ascending in threads
};

struct HostBandwidthOptions {
  /// Of each of the four arrays; more than the caches hold.
  size_t array_bytes = size_t{256} << 20;
  double seconds = 4; ///< for all nodes
};

/// Measures with 1, 2, 4, ... threads, one a core, up to all cores of a node,
/// bound to the node with their memory. Blocks.
std::vector<NumaNodeBandwidth> measure_host_memory(
    const HostBandwidthOptions& options);

} // namespace tessera::tools
