// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/machine.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"

#include <filesystem>

namespace tessera::planner {

namespace {

constexpr int kUsualMarginPercent = 3;
constexpr int64_t kUsualReserve = int64_t{3} << 29;

} // namespace

Machine machine_of(const PlanMachine& wanted, const DeviceRates& rates) {
  Machine machine;
  machine.rates = rates;
  machine.devices = wanted.devices;
  machine.devices_per_node = wanted.devices_per_node;
  machine.device = wanted.device == "cpu" ? c10::kCPU : c10::kCUDA;
  machine.device_bytes = wanted.device_bytes;
  machine.reserved_bytes = wanted.reserved_bytes.value_or(
      machine.device == c10::kCPU ? 0 : kUsualReserve);
  machine.margin_bytes = wanted.margin_bytes.value_or(
      machine.device_bytes / 100 * kUsualMarginPercent);
  machine.host_bytes = wanted.host_bytes;
  machine.nvme_bytes = wanted.nvme_bytes;
  machine.nvme_path = wanted.nvme_path;
  TESSERA_CHECK(
      !machine.nvme_bytes || machine.host_bytes,
      "plan: NVMe memory is {}, and that of the host is not known; disks hold what the host has no room for, so give both (--host-memory)",
      runtime::size_text(*machine.nvme_bytes));
  TESSERA_CHECK(
      !machine.nvme_bytes || std::filesystem::is_directory(machine.nvme_path),
      "plan: --nvme-path is '{}', which is not a folder on this machine; create it, or name another one",
      machine.nvme_path);
  TESSERA_CHECK(
      machine.devices > 0 && machine.devices_per_node > 0,
      "plan: {} devices, {} of a node; both must be at least 1",
      machine.devices,
      machine.devices_per_node);
  TESSERA_CHECK(
      machine.available_bytes() > 0,
      "the memory of a device is {}, all of it reserved for CUDA, NCCL and cuBLAS (--reserve, {}) or left free (--margin, {})",
      runtime::size_text(machine.device_bytes),
      runtime::size_text(machine.reserved_bytes),
      runtime::size_text(machine.margin_bytes));
  return machine;
}

} // namespace tessera::planner
