// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory_budget.h"

#include "tessera/runtime/core/error.h"

namespace tessera {

namespace {

void check_at_least_0(const char* name, std::optional<int64_t> bytes) {
  TESSERA_CHECK(
      bytes.value_or(0) >= 0,
      "memory.{} is {}; it must be at least 0.",
      name,
      bytes.value_or(0));
}

void check_has_path(
    const char* name,
    std::optional<MemoryTier> tier,
    const MemoryBudget& memory) {
  TESSERA_CHECK(
      tier != MemoryTier::kNvme || !memory.nvme_path.empty(),
      "memory.{} is nvme, but memory.nvme_path is not set; set it to a folder on a local disk.",
      name);
}

} // namespace

void check(const MemoryBudget& memory) {
  check_at_least_0("activation_bytes", memory.activation_bytes);
  check_at_least_0("host_bytes", memory.host_bytes);
  check_at_least_0("nvme_bytes", memory.nvme_bytes);
  TESSERA_CHECK(
      !memory.nvme_bytes || !memory.nvme_path.empty(),
      "memory.nvme_bytes is {}, but memory.nvme_path is not set; set it to a folder on that disk.",
      memory.nvme_bytes.value_or(0));
  TESSERA_CHECK(
      memory.nvme_path.empty() ||
          std::filesystem::is_directory(memory.nvme_path),
      "memory.nvme_path: '{}' is not a folder; create it, or choose another one.",
      memory.nvme_path.string());
  check_has_path("parameters", memory.parameters, memory);
  check_has_path("gradients", memory.gradients, memory);
}

} // namespace tessera
