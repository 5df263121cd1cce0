// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/stores/tier_bytes.h"

#include "tessera/offload/stores/host_memory.h"
#include "tessera/offload/stores/scratch_file.h"
#include "tessera/runtime/memory/tensor_bytes.h"

namespace tessera::offload {

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

void add_tier_bytes(
    TierBytes& bytes,
    MemoryTier tier,
    MemoryPurpose purpose,
    int64_t tensor_bytes) {
  bytes[static_cast<size_t>(tier)][static_cast<size_t>(purpose)] +=
      tier_bytes(tier, tensor_bytes);
}

void add_tier_bytes(
    TierBytes& bytes,
    MemoryTier tier,
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype) {
  add_tier_bytes(bytes, tier, purpose, runtime::bytes_of(numel, dtype));
}

} // namespace tessera::offload
