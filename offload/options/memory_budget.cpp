// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/options/memory_budget.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_check.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, MemoryBudget& memory) {
  fields.bytes(
      "device_bytes",
      memory.device_bytes,
      1,
      "what a rank has of its device, e.g. the size of the card; what CUDA, NCCL and cuBLAS take is measured and comes off; as many groups as fit stay unsharded, instead of following `sharding.zero_stage`");
  fields.bytes(
      "activation_bytes",
      memory.activation_bytes,
      0,
      "part of it that is reserved for activations; the budget of `placement.activations`");
  fields.bytes(
      "host_bytes",
      memory.host_bytes,
      0,
      "hard limit per rank for host memory next to the device; with `device_bytes`, what does not fit on the device goes there: first optimizer state, then gradients, then parameters");
  std::optional<std::string> path;
  if (!memory.nvme_path.empty()) {
    path = memory.nvme_path.string();
  }
  fields.field(
      "nvme_path", path, "folder on a local disk for what fits in neither");
  memory.nvme_path = path.value_or("");
  fields.bytes(
      "nvme_bytes",
      memory.nvme_bytes,
      0,
      "hard limit there, per rank; by default the free disk space");
}

void check(const MemoryBudget& memory) {
  runtime::check_fields("memory", memory);
  TESSERA_CHECK(
      !memory.nvme_bytes || !memory.nvme_path.empty(),
      "memory.nvme_bytes is {}, but memory.nvme_path is not set; set it to a folder on that disk.",
      memory.nvme_bytes.value_or(0));
  TESSERA_CHECK(
      memory.nvme_path.empty() ||
          std::filesystem::is_directory(memory.nvme_path),
      "memory.nvme_path: '{}' is not a folder; create it, or choose another one.",
      memory.nvme_path.string());
}

} // namespace tessera
