// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RefuseAllocations` makes allocations of its thread fail, so that an operator
// ends at the first one, and its size is known.

#include <cstddef>

namespace tessera::runtime {

/// What LibTorch's CPU allocator throws in place of memory. No std::exception:
/// LibTorch catches these around oneDNN and multiplies in another way.
struct RefusedAllocation {
  size_t bytes = 0;
};

/// While it exists, LibTorch's CPU allocator throws RefusedAllocation in its
/// thread, but for nothing. Needs install_cpu_memory_counter().
class RefuseAllocations {
 public:
  RefuseAllocations();
  ~RefuseAllocations();
  RefuseAllocations(const RefuseAllocations&) = delete;
  RefuseAllocations& operator=(const RefuseAllocations&) = delete;
};

/// Whether this thread has one.
bool refuses_allocations();

} // namespace tessera::runtime
