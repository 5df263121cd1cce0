// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Machine` is what a planned job runs on: memory, and the rates from which
// step times are estimated.

#include "tessera/planner/device_rates.h"
#include "tessera/planner/search/plan_machine.h"

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::planner {

struct Machine {
  int devices = 1;
  int devices_per_node = 8;
  c10::DeviceType device = c10::kCUDA;
  int64_t device_bytes = 0; ///< of a device
  /// Of them: what CUDA, NCCL and cuBLAS take and LibTorch's allocator cannot
  /// use.
  int64_t reserved_bytes = 0;
  /// Of them: what a plan leaves free besides, for what it may be wrong by.
  int64_t margin_bytes = 0;
  /// Of a node. Nothing: not known, so that nothing is moved there but what the
  /// configuration places there.
  std::optional<int64_t> host_bytes;
  std::optional<int64_t> nvme_bytes; ///< of a node's disks
  std::string nvme_path;
  DeviceRates rates;

  int64_t available_bytes() const {
    return device_bytes - reserved_bytes - margin_bytes;
  }
  int ranks_of_node() const {
    return std::min(devices, devices_per_node);
  }
  /// What of host memory is a rank's.
  int64_t host_bytes_of_rank() const {
    return host_bytes.value_or(0) / ranks_of_node();
  }
  int64_t nvme_bytes_of_rank() const {
    return nvme_bytes.value_or(0) / ranks_of_node();
  }
};

/// @param rates of `wanted`'s device.
/// @throws tessera::Error where nothing of a device's memory is left, or there
///   is no folder for NVMe memory.
Machine machine_of(const PlanMachine& wanted, const DeviceRates& rates);

} // namespace tessera::planner
