// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/near_memory.h"

#include "tessera/runtime/memory/host_pinning.h"

#include <hwloc.h>

#include <memory>
#include <string>

namespace tessera::offload {

namespace {

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const {
    hwloc_topology_destroy(topology);
  }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

/// Null if it cannot be determined.
Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) {
    return nullptr;
  }
  Topology owned(topology);
  hwloc_topology_set_io_types_filter(
      topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  return hwloc_topology_load(topology) == 0 ? std::move(owned) : nullptr;
}

} // namespace

void prefer_near_memory(void* data, size_t bytes, c10::Device device) {
  if (device.is_cpu() || runtime::host_pinning().bus_id == nullptr) {
    return;
  }
  const std::string bus_id =
      runtime::host_pinning().bus_id(device.has_index() ? device.index() : 0);
  static const Topology kTopology = load_topology();
  if (kTopology == nullptr || bus_id.empty() ||
      hwloc_get_nbobjs_by_type(kTopology.get(), HWLOC_OBJ_NUMANODE) < 2) {
    return;
  }
  const hwloc_obj_t found =
      hwloc_get_pcidev_by_busidstring(kTopology.get(), bus_id.c_str());
  if (found == nullptr) {
    return;
  }
  const hwloc_obj_t near =
      hwloc_get_non_io_ancestor_obj(kTopology.get(), found);
  (void)hwloc_set_area_membind(
      kTopology.get(),
      data,
      bytes,
      near->nodeset,
      HWLOC_MEMBIND_BIND,
      HWLOC_MEMBIND_BYNODESET);
}

} // namespace tessera::offload
