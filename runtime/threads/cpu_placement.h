// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CpuPlacement` assigns cores to the threads of this process's update pool.

#include <string>
#include <vector>

namespace tessera::runtime {

struct CpuPlacementOptions {
  /// 0: TESSERA_CPU_THREADS if it is set, else one per core of this rank's
  /// share, limited by the CPU quota of the container.
  int threads = 0;
  /// PCI address of the device that the threads work for ("0000:3b:00.0"); its
  /// neighboring cores are preferred. Empty: no preference.
  std::string near_pci_device;
  /// Number of this process among those that share the machine; -1: from
  /// LOCAL_RANK and LOCAL_WORLD_SIZE, or the only one.
  int local_rank = -1;
  int local_world_size = -1;
};

/// The threads of a pool and the cores to which they are bound.
class CpuPlacement {
 public:
  /// Threads that are not bound to cores.
  explicit CpuPlacement(int threads);
  /// @param cpus operating system numbers; thread i is bound to cpus[i].
  explicit CpuPlacement(std::vector<int> cpus);

  int threads() const {
    return threads_;
  }
  /// Empty: not bound.
  const std::vector<int>& cpus() const {
    return cpus_;
  }

  /// Binds the calling thread to the core of thread `index`. If the system
  /// refuses, the thread stays unbound and a warning is logged, once per
  /// process.
  void bind_calling_thread(int index) const;

 private:
  int threads_;
  std::vector<int> cpus_;
};

/// Divides the cores that this process may use (its affinity mask, which
/// taskset, numactl and containers restrict) among the ranks of this machine:
/// one hardware thread per core, neighboring cores together. A rank whose
/// affinity mask differs from that of its parent process was given cores of its
/// own and uses all of them. If there are fewer cores than threads, no thread
/// is bound.
/// @throws tessera::Error when an environment variable is not a valid number.
CpuPlacement place_update_threads(const CpuPlacementOptions& options);

} // namespace tessera::runtime
