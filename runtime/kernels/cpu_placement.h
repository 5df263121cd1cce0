// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which cores the threads of this process's update pool get.

#include <string>
#include <vector>

namespace tessera {

struct CpuPlacementOptions {
  /// 0: TESSERA_CPU_THREADS where it is set, else one for each core of this
  /// rank's share, and no more than the processor time that the container is
  /// allowed.
  int threads = 0;
  /// PCI address of the device that the host works for ("0000:3b:00.0"), whose
  /// neighbouring cores are preferred; empty: all cores alike.
  std::string near_pci_device;
  /// This process among those that share the machine; -1: LOCAL_RANK and
  /// LOCAL_WORLD_SIZE, or alone.
  int local_rank = -1;
  int local_world_size = -1;
};

/// The threads of a pool, and the cores they are bound to.
class CpuPlacement {
 public:
  /// Threads that are not bound.
  explicit CpuPlacement(int threads);
  /// @param cpus operating system numbers; thread i gets cpus[i].
  explicit CpuPlacement(std::vector<int> cpus);

  int threads() const {
    return threads_;
  }
  /// Empty: not bound.
  const std::vector<int>& cpus() const {
    return cpus_;
  }

  /// Binds the calling thread to the core of thread `index`. Where the system
  /// refuses, the thread stays free and a warning is logged, once a process.
  void bind_calling_thread(int index) const;

 private:
  int threads_;
  std::vector<int> cpus_;
};

/// Divides the cores that this process may use (its affinity mask, which
/// taskset, numactl and containers narrow) among the ranks of this machine, one
/// hardware thread of each core, neighbours together. A rank whose mask is not
/// the one of the process that started it was given cores of its own, and keeps
/// all of them. Where more threads are asked for than there are cores, none is
/// bound.
/// @throws tessera::Error when a number in the environment is none.
CpuPlacement place_update_threads(const CpuPlacementOptions& options);

} // namespace tessera
