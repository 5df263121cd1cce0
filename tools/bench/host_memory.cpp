// SPDX-License-Identifier: Apache-2.0
#include "bench/host_memory.h"

#include "bench/memory_kernels.h"

#include "tessera/runtime/core/error.h"

#include <hwloc.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

namespace tessera::tools {

namespace {

using Clock = std::chrono::steady_clock;

struct TopologyDeleter {
  void operator()(hwloc_topology_t topology) const {
    hwloc_topology_destroy(topology);
  }
};
using Topology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, TopologyDeleter>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  TESSERA_CHECK(
      hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0,
      "bench: hwloc cannot read this machine's topology; is /sys mounted?");
  return Topology(topology);
}

/// The cores of `node` that this process may use.
std::vector<hwloc_obj_t> cores_of(
    hwloc_topology_t topology,
    hwloc_const_cpuset_t node) {
  std::vector<hwloc_obj_t> cores;
  const int count =
      hwloc_get_nbobjs_inside_cpuset_by_type(topology, node, HWLOC_OBJ_CORE);
  for (int i = 0; i < count; ++i) {
    cores.push_back(hwloc_get_obj_inside_cpuset_by_type(
        topology, node, HWLOC_OBJ_CORE, static_cast<unsigned>(i)));
  }
  return cores;
}

/// Four arrays whose pages are on the nodes of the threads that use them.
class Arrays {
 public:
  explicit Arrays(size_t count) : count_(count) {
    for (auto& array : arrays_) {
      // Not initialized: the first touch selects the node.
      array.reset(static_cast<float*>(
          std::aligned_alloc(kPage, count * sizeof(float))));
      TESSERA_CHECK(
          array != nullptr,
          "bench: cannot allocate four arrays of {} bytes; use a smaller --array-mib.",
          count * sizeof(float));
    }
  }
  size_t count() const {
    return count_;
  }
  float* operator[](size_t i) const {
    return arrays_[i].get();
  }
  static constexpr size_t kPage = 4096;

 private:
  struct Free {
    void operator()(float* memory) const {
      std::free(memory);
    }
  };
  size_t count_;
  std::unique_ptr<float, Free> arrays_[4];
};

/// One of the kernels on a part of the arrays, and the bytes it moves.
struct Kernel {
  double bytes_per_element;
  double MemoryBandwidth::*result;
  std::function<void(const Arrays&, size_t begin, size_t count)> run;
};

std::vector<Kernel> kernels(std::atomic<uint64_t>& sink) {
  return {
      {4,
       &MemoryBandwidth::read,
       [&sink](const Arrays& a, size_t begin, size_t count) {
         sink += read_memory(a[0] + begin, count);
       }},
      {4,
       &MemoryBandwidth::write,
       [](const Arrays& a, size_t begin, size_t count) {
         write_memory(a[0] + begin, 1, count);
       }},
      {12,
       &MemoryBandwidth::triad,
       [](const Arrays& a, size_t begin, size_t count) {
         triad_memory(a[0] + begin, a[1] + begin, a[2] + begin, count);
       }},
      {28,
       &MemoryBandwidth::update,
       [](const Arrays& a, size_t begin, size_t count) {
         update_memory(
             a[0] + begin, a[1] + begin, a[2] + begin, a[3] + begin, count);
       }}};
}

/// Runs all kernels with one thread on each of `cores`, until `seconds` have
/// passed; the fastest round of each counts.
MemoryBandwidth measure(
    hwloc_topology_t topology,
    const std::vector<hwloc_obj_t>& cores,
    size_t count,
    double seconds) {
  const Arrays arrays(count);
  std::atomic<uint64_t> sink{0};
  const auto loops = kernels(sink);
  MemoryBandwidth best;
  best.threads = static_cast<int>(cores.size());
  const size_t part = count / cores.size();
  std::barrier gate(static_cast<std::ptrdiff_t>(cores.size()));
  std::atomic<bool> goes_on{true};

  const auto work = [&](size_t number) {
    // If binding is forbidden, the system places threads and pages.
    hwloc_set_cpubind(topology, cores[number]->cpuset, HWLOC_CPUBIND_THREAD);
    for (size_t i = 0; i < 4; ++i) {
      write_memory(arrays[i] + number * part, 1, part);
    }
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (goes_on) {
      for (const Kernel& loop : loops) {
        gate.arrive_and_wait();
        const auto start = Clock::now();
        loop.run(arrays, number * part, part);
        gate.arrive_and_wait();
        if (number == 0) {
          const std::chrono::duration<double> took = Clock::now() - start;
          double& result = best.*loop.result;
          result = std::max(
              result,
              loop.bytes_per_element *
                  static_cast<double>(part * cores.size()) / took.count());
        }
      }
      if (number == 0) {
        goes_on = Clock::now() < end;
      }
      gate.arrive_and_wait();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < cores.size(); ++i) {
      threads.emplace_back(work, i);
    }
  }
  return best;
}

std::vector<size_t> thread_counts(size_t cores) {
  std::vector<size_t> counts;
  for (size_t threads = 1; threads < cores; threads *= 2) {
    counts.push_back(threads);
  }
  counts.push_back(cores);
  return counts;
}

} // namespace

std::vector<NumaNodeBandwidth> measure_host_memory(
    const HostBandwidthOptions& options) {
  const Topology topology = load_topology();
  std::vector<hwloc_obj_t> nodes;
  size_t rounds = 0;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(
            topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const auto cores = cores_of(topology.get(), node->cpuset);
    if (!cores.empty()) {
      nodes.push_back(node);
      rounds += thread_counts(cores.size()).size();
    }
  }
  std::vector<NumaNodeBandwidth> result;
  for (hwloc_obj_t node : nodes) {
    const auto cores = cores_of(topology.get(), node->cpuset);
    NumaNodeBandwidth measured;
    measured.node = static_cast<int>(node->os_index);
    measured.cores = static_cast<int>(cores.size());
    measured.memory_bytes = node->attr->numanode.local_memory;
    for (const size_t threads : thread_counts(cores.size())) {
      // Whole pages for every thread.
      const size_t step = threads * Arrays::kPage;
      const size_t bytes =
          std::max(options.array_bytes / step, size_t{1}) * step;
      measured.by_threads.push_back(measure(
          topology.get(),
          {cores.begin(), cores.begin() + static_cast<std::ptrdiff_t>(threads)},
          bytes / sizeof(float),
          options.seconds / static_cast<double>(rounds)));
    }
    result.push_back(std::move(measured));
  }
  TESSERA_CHECK(!result.empty(), "bench: hwloc finds no NUMA node with cores.");
  return result;
}

} // namespace tessera::tools
