// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/threads/cpu_placement.h"

#include "tessera/runtime/core/cpu_quota.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::runtime {

namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const {
    hwloc_topology_destroy(topology);
  }
};
using Topology =
    std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const {
    hwloc_bitmap_free(bitmap);
  }
};
using Bitmap =
    std::unique_ptr<std::remove_pointer_t<hwloc_bitmap_t>, FreeBitmap>;

Topology load_topology(bool with_devices) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return nullptr;
  }
  Topology topology(raw);
  if (with_devices) {
    hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  }
  return hwloc_topology_load(raw) == 0 ? std::move(topology) : nullptr;
}

int number_in_environment(const char* name, int otherwise, int least) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') {
    return otherwise;
  }
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, value);
  TESSERA_CHECK(
      error == std::errc() && rest == end && value >= least,
      "update threads: the environment variable {} is '{}'; it must be an integer of at least {}.",
      name,
      text,
      least);
  return value;
}

/// Cores, as the number of one hardware thread of each, neighboring cores
/// together.
struct Cores {
  std::vector<int> cpus; ///< near the device, if it has any
  int usable = 0; ///< all that this process may use
};

int first_of(hwloc_obj_t core, const Bitmap& mask) {
  const Bitmap local(hwloc_bitmap_dup(core->cpuset));
  hwloc_bitmap_and(local.get(), local.get(), mask.get());
  return hwloc_bitmap_first(local.get());
}

Cores usable_cores(const std::string& near_pci_device) {
  Cores cores;
  const Topology topology = load_topology(!near_pci_device.empty());
  if (!topology) {
    return cores;
  }
  const Bitmap mask(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(topology.get(), mask.get(), HWLOC_CPUBIND_PROCESS) !=
      0) {
    hwloc_bitmap_copy(
        mask.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  }
  hwloc_obj_t home = nullptr;
  if (!near_pci_device.empty()) {
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(
        topology.get(), near_pci_device.c_str());
    home = device != nullptr
               ? hwloc_get_non_io_ancestor_obj(topology.get(), device)
               : nullptr;
  }
  std::vector<int> others;
  const int count = hwloc_get_nbobjs_by_type(topology.get(), HWLOC_OBJ_CORE);
  for (int i = 0; i < count; ++i) {
    const hwloc_obj_t core = hwloc_get_obj_by_type(
        topology.get(), HWLOC_OBJ_CORE, static_cast<unsigned>(i));
    const int cpu = first_of(core, mask);
    if (cpu < 0) {
      continue;
    }
    ++cores.usable;
    const bool is_near =
        home == nullptr ||
        hwloc_bitmap_intersects(core->cpuset, home->cpuset) != 0;
    (is_near ? cores.cpus : others).push_back(cpu);
  }
  if (cores.cpus.empty()) {
    cores.cpus = std::move(others);
  }
  return cores;
}

/// Whether this process has the affinity mask of its parent process.
bool shares_the_parents_mask() {
  cpu_set_t local;
  cpu_set_t parent;
  if (::sched_getaffinity(0, sizeof(local), &local) != 0 ||
      ::sched_getaffinity(::getppid(), sizeof(parent), &parent) != 0) {
    return true;
  }
  return CPU_EQUAL(&local, &parent) != 0;
}

} // namespace

CpuPlacement::CpuPlacement(int threads) : threads_(threads) {
  TESSERA_CHECK(
      threads >= 1,
      "update threads: the number of threads is {}; it must be at least 1.",
      threads);
}

CpuPlacement::CpuPlacement(std::vector<int> cpus)
    : threads_(static_cast<int>(cpus.size())), cpus_(std::move(cpus)) {
  TESSERA_CHECK(!cpus_.empty(), "update threads: there is no core to run on");
}

void CpuPlacement::bind_calling_thread(int index) const {
  if (cpus_.empty()) {
    return;
  }
  const int cpu = cpus_.at(static_cast<size_t>(index));
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0) {
    static std::once_flag once;
    const int error = errno;
    std::call_once(once, [&] {
      log_warning(
          "update threads: binding to core {} failed ({}); they run unbound, which may be slower.",
          cpu,
          std::strerror(error));
    });
  }
}

CpuPlacement place_update_threads(const CpuPlacementOptions& options) {
  const int ranks = std::max(
      1,
      options.local_world_size > 0
          ? options.local_world_size
          : number_in_environment("LOCAL_WORLD_SIZE", 1, 1));
  const int rank = options.local_rank >= 0
                       ? options.local_rank
                       : number_in_environment("LOCAL_RANK", 0, 0);
  const int asked = options.threads > 0
                        ? options.threads
                        : number_in_environment("TESSERA_CPU_THREADS", 0, 1);
  Cores found = usable_cores(options.near_pci_device);
  std::vector<int>& cores = found.cpus;
  if (cores.empty()) {
    const auto all = static_cast<int>(std::thread::hardware_concurrency());
    return CpuPlacement(asked > 0 ? asked : std::max(1, all / ranks));
  }
  if (ranks > 1 && shares_the_parents_mask()) {
    // Devices, and thus ranks, are assumed to be spread evenly over the
    // machine.
    const auto count = static_cast<int>(cores.size());
    const int sharers = std::max(1, ranks * count / found.usable);
    const int begin = rank % sharers * count / sharers;
    const int end = (rank % sharers + 1) * count / sharers;
    cores = {
        cores.begin() + std::min(begin, count - 1),
        cores.begin() + std::min(std::max(end, begin + 1), count)};
  }
  if (asked > static_cast<int>(cores.size())) {
    return CpuPlacement(asked);
  }
  const int most = std::max(1, cpu_quota() / ranks);
  const auto threads = static_cast<size_t>(asked > 0 ? asked : most);
  cores.resize(std::min(cores.size(), threads));
  return CpuPlacement(std::move(cores));
}

} // namespace tessera::runtime
