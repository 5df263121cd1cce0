// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RefuseAllocations` makes an allocation of its thread fail, so that an
// operator ends there, and its size is known.

#include <cstddef>

namespace tessera::runtime {

/// What LibTorch's CPU allocator throws in place of memory. No std::exception:
/// LibTorch catches these around oneDNN and multiplies in another way.
struct RefusedAllocation {
  size_t bytes = 0;
};

/// While it exists, LibTorch's CPU allocator throws RefusedAllocation in its
/// thread, but for nothing. Not two at a time. Needs
/// install_cpu_memory_counter().
class RefuseAllocations {
 public:
  /// @param served allocations before the first that is refused.
  explicit RefuseAllocations(int served);
  ~RefuseAllocations();
  RefuseAllocations(const RefuseAllocations&) = delete;
  RefuseAllocations& operator=(const RefuseAllocations&) = delete;
};

/// Asked before each allocation: whether it is to be refused.
bool refuses_allocation();

} // namespace tessera::runtime
