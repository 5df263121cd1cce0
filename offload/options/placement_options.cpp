// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/options/placement_options.h"

#include "tessera/offload/options/memory_budget.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"

namespace tessera {

void visit_fields(runtime::OptionFields& fields, PlacementOptions& options) {
  const std::vector<std::pair<std::string, std::optional<MemoryTier>>> tiers{
      {"device", MemoryTier::kDevice},
      {"host", MemoryTier::kHost},
      {"nvme", MemoryTier::kNvme},
      {"auto", std::nullopt}};
  fields.choice(
      "parameters",
      options.parameters,
      tiers,
      "tier of the shards of parameters; `auto` follows the budgets in `memory`, and without `memory.device_bytes` is the device");
  fields.choice(
      "gradients",
      options.gradients,
      tiers,
      "tier of the shards of gradients; likewise");
  fields.choice(
      "optimizer",
      options.optimizer,
      tiers,
      "tier of master weights and moments; likewise");
  fields.choice(
      "activations",
      options.activations,
      {{"device", MemoryTier::kDevice},
       {"host", MemoryTier::kHost},
       {"auto", std::nullopt}},
      "tensors that are saved for backward: `device`, except inputs of checkpointed blocks that request the host; `auto` (what exceeds `memory.activation_bytes` goes to the host, oldest first); `host` (everything is copied when it is saved; what exceeds `offload.prefetch_bytes` leaves the device)");
}

void check(const PlacementOptions& placement, const MemoryBudget& memory) {
  TESSERA_CHECK(
      placement.activations != MemoryTier::kNvme,
      "placement.activations is nvme, but activations can rest on the device and the host only; use host, or auto with memory.activation_bytes.");
  TESSERA_CHECK(
      placement.activations || memory.activation_bytes > 0,
      "placement.activations is auto, but memory.activation_bytes, its budget, is 0. Set memory.activation_bytes, or placement.activations to host or device.");
  const auto check_has_path = [&](const char* name, auto tier) {
    TESSERA_CHECK(
        tier != MemoryTier::kNvme || !memory.nvme_path.empty(),
        "placement.{} is nvme, but memory.nvme_path is not set; set it to a folder on a local disk.",
        name);
  };
  check_has_path("parameters", placement.parameters);
  check_has_path("gradients", placement.gradients);
  check_has_path("optimizer", placement.optimizer);
}

} // namespace tessera
