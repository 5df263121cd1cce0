// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/tier_bytes.h"

#include "tessera/offload/host_memory.h"
#include "tessera/offload/scratch_file.h"

namespace tessera::engine {

int64_t tier_bytes(MemoryTier tier, int64_t bytes) {
  switch (tier) {
    case MemoryTier::kDevice:
      return bytes;
    case MemoryTier::kHost:
      return offload::HostMemory::rounded(bytes);
    case MemoryTier::kNvme:
      return offload::ScratchFile::rounded(bytes);
  }
  return bytes;
}

int64_t tier_bytes(MemoryTier tier, int64_t numel, at::ScalarType dtype) {
  return tier_bytes(
      tier, numel * static_cast<int64_t>(c10::elementSize(dtype)));
}

void add_tier_bytes(
    TierBytes& bytes,
    MemoryTier tier,
    MemoryPurpose purpose,
    int64_t tensor_bytes) {
  bytes[static_cast<size_t>(tier)][static_cast<size_t>(purpose)] +=
      tier_bytes(tier, tensor_bytes);
}

} // namespace tessera::engine
