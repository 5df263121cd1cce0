// SPDX-License-Identifier: Apache-2.0
#pragma once
// `tier_bytes()` is what a tensor takes of a memory tier, as its store counts
// it in the ledger.

#include "tessera/runtime/memory/memory_ledger.h"

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace tessera::offload {

/// @param bytes of the tensor.
int64_t tier_bytes(MemoryTier tier, int64_t bytes);

/// Adds a tensor to `bytes`.
void add_tier_bytes(
    TierBytes& bytes,
    MemoryTier tier,
    MemoryPurpose purpose,
    int64_t tensor_bytes);
void add_tier_bytes(
    TierBytes& bytes,
    MemoryTier tier,
    MemoryPurpose purpose,
    int64_t numel,
    at::ScalarType dtype);

} // namespace tessera::offload
