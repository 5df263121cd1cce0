// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/memory/budget_error.h"

#include "tessera/runtime/core/size_text.h"

#include <string>
#include <vector>

namespace tessera::engine {

namespace {

/// "1.50 MiB (1572864 bytes)".
std::string exact_size_text(int64_t bytes) {
  return runtime::size_text(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

int64_t on_device(const TierBytes& planned, MemoryPurpose purpose) {
  return planned.front()[static_cast<size_t>(purpose)];
}

/// Adds options that would move memory from the device to other tiers.
void add_remedies_of_tiers(
    std::vector<std::string>& remedies,
    const MemoryBudget& memory,
    const PlacementOptions& placement,
    const TierBytes& planned) {
  const int64_t state = on_device(planned, MemoryPurpose::kOptimizerState);
  if (placement.optimizer == MemoryTier::kDevice && state > 0) {
    remedies.push_back(
        "set placement.optimizer to auto; its current value keeps " +
        exact_size_text(state) + " of optimizer state on the device");
  }
  const bool weights_may_leave = placement.parameters != MemoryTier::kDevice ||
                                 placement.gradients != MemoryTier::kDevice;
  const int64_t weights = on_device(planned, MemoryPurpose::kParameters) +
                          on_device(planned, MemoryPurpose::kGradients);
  if (state == 0 && (weights == 0 || !weights_may_leave)) {
    return;
  }
  const std::string label = state > 0
                                ? "optimizer state (" + exact_size_text(state) +
                                      " of it still on the device)"
                                : "weights and gradients";
  remedies.push_back(
      memory.host_bytes ? "raise memory.host_bytes from " +
                              exact_size_text(*memory.host_bytes) +
                              " to make room for " + label
                        : "set memory.host_bytes so that " + label +
                              " can be kept in host memory");
  if (memory.nvme_path.empty()) {
    remedies.emplace_back(
        "set memory.nvme_path so that it can be kept on a local disk");
  } else if (memory.nvme_bytes) {
    remedies.push_back(
        "raise memory.nvme_bytes from " + exact_size_text(*memory.nvme_bytes));
  }
}

} // namespace

std::string device_budget_error(
    const MemoryBudget& memory,
    const PlacementOptions& placement,
    const OffloadOptions& offload,
    const TierBytes& planned,
    int64_t first_step) {
  const int64_t budget = memory.device_bytes.value_or(0);
  const int64_t needed =
      total_bytes(planned.front()) + memory.activation_bytes + first_step;
  std::vector<std::string> remedies{
      "raise memory.device_bytes to at least " + exact_size_text(needed)};
  add_remedies_of_tiers(remedies, memory, placement, planned);
  if (on_device(planned, MemoryPurpose::kStaging) > 0) {
    remedies.push_back(
        "lower offload.stage_bytes from " +
        exact_size_text(offload.stage_bytes) + ", or set offload.ratio to 1");
  }
  if (memory.activation_bytes > 0) {
    remedies.emplace_back(
        "lower memory.activation_bytes and use smaller micro-batches or shorter sequences");
  }
  if (const int64_t slots = on_device(planned, MemoryPurpose::kGatherSlots);
      slots > 0) {
    remedies.push_back(
        "make groups smaller (`group` in sharding.modules); the largest adjacent ones, unsharded at the same time, take " +
        exact_size_text(slots));
  }
  remedies.emplace_back("use more ranks");
  std::string text = "the memory budget is too small: memory.device_bytes is " +
                     exact_size_text(budget) + ", but this rank needs " +
                     exact_size_text(needed) + " of device memory, " +
                     exact_size_text(memory.activation_bytes) +
                     " of it for activations" +
                     (first_step > 0 ? " and " + exact_size_text(first_step) +
                                           " for gradients of the first step"
                                     : std::string()) +
                     ". Possible fixes:";
  for (const std::string& remedy : remedies) {
    text += "\n  - " + remedy;
  }
  return memory_table(text + "\nneeded", planned);
}

} // namespace tessera::engine
