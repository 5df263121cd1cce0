// SPDX-License-Identifier: Apache-2.0
#pragma once
// `device_budget()` is a memory.device_bytes that leaves a given room for
// unsharded groups.

#include "tessera/engine/engine.h"

namespace tessera::tests {

/// @param engine of an equal module without a budget.
inline int64_t device_budget(const Engine& engine, int64_t unsharded_bytes) {
  const MemoryBytes& planned = engine.planned_memory();
  return total_bytes(planned) -
         planned[static_cast<size_t>(MemoryPurpose::kGatherSlots)] +
         unsharded_bytes;
}

} // namespace tessera::tests
