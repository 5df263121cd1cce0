// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/updates/update_site.h"

#include "tessera/offload/updates/staging_buffers.h"
#include "tessera/runtime/core/error.h"

#include <ATen/OpMathType.h>

#include <utility>

namespace tessera::offload {

UpdateTypes::UpdateTypes(
    at::ScalarType weights,
    at::ScalarType gradients,
    std::optional<at::ScalarType> moments)
    : weight(weights),
      master(at::toOpMathType(weights)),
      gradient(gradient_from(gradients)),
      moment(moments.value_or(master)) {}

at::ScalarType UpdateTypes::gradient_from(at::ScalarType reduced) const {
  return at::isReducedFloatingType(reduced) ? reduced : master;
}

UpdateSite::UpdateSite(
    UpdatedShard shard,
    const runtime::ShardTiers& tiers,
    bool streams)
    : shard_(std::move(shard)),
      tiers_(tiers),
      streams_(streams),
      device_(
          streams || tiers.state == MemoryTier::kDevice
              ? shard_.device
              : c10::Device(at::kCPU)) {
  TESSERA_CHECK(
      at::isFloatingType(types().weight),
      "optimizer: weights of type {} in group '{}' cannot be trained; freeze them (requires_grad_(false)) before wrap.",
      types().weight,
      shard_.page);
}

int64_t UpdateSite::staging_bytes() const {
  const auto bytes = [&](bool staged, at::ScalarType dtype) {
    return staged ? StagingBuffers::Buffer::bytes_for(shard_.numel, dtype) : 0;
  };
  if (!device_.is_cpu()) {
    return bytes(
        streams_master() && tiers_.state == MemoryTier::kNvme, types().master);
  }
  const auto is_here = [&](MemoryTier tier) {
    return tier == MemoryTier::kHost ||
           (tier == MemoryTier::kDevice && shard_.device.is_cpu());
  };
  const MemoryTier master =
      shard_.has_separate_master ? tiers_.state : tiers_.parameters;
  return bytes(!is_here(master), types().master) +
         bytes(!is_here(tiers_.gradients), types().gradient) +
         bytes(types().rounds() && !is_here(tiers_.parameters), types().weight);
}

} // namespace tessera::offload
