// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PlanMachine` says what a planned job would run on.

#include <cstdint>
#include <optional>
#include <string>

namespace tessera {

/// Devices and memory of a planned job.
struct PlanMachine {
  int devices = 1; ///< of the job, a rank each
  int devices_per_node = 8;
  /// Kind of device, whose usual rates times are estimated from: "v100",
  /// "a100", "h100", "h200", "rtx2080ti", "rtx3090", "rtx4090", "cpu".
  std::string device = "a100";
  int64_t device_bytes = 0; ///< of a device
  /// Of device_bytes: what CUDA, NCCL and cuBLAS take. Nothing: 1.5 GiB; of
  /// CPUs 0.
  std::optional<int64_t> reserved_bytes;
  /// Of device_bytes: what a plan leaves free besides. Nothing: 3 %.
  std::optional<int64_t> margin_bytes;
  /// Of a node, which its ranks may use together. Nothing: only what the
  /// options place there.
  std::optional<int64_t> host_bytes;
  /// Of a node's NVMe disks, for what host memory, which has to be given, has
  /// no room for. Nothing: none.
  std::optional<int64_t> nvme_bytes;
  /// MemoryBudget::nvme_path of the job; an existing folder on this machine.
  std::string nvme_path = ".";
};

} // namespace tessera
