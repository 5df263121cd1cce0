// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/activations/host_activation_pool.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera::offload {

HostActivationPool::HostActivationPool(const HostMemoryOptions& options)
    : memory_(options, ledger_) {}

int64_t HostActivationPool::slab_bytes() const {
  int64_t bytes = 0;
  for (const Slab& slab : slabs_) {
    bytes += slab.buffer.numel();
  }
  return bytes;
}

HostBlock HostActivationPool::take(int64_t bytes) {
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (HostBlock block = take_from(i, bytes); block.defined()) {
      return block;
    }
  }
  if (!add_slab(bytes)) {
    return {};
  }
  return take_from(slabs_.size() - 1, bytes);
}

HostBlock HostActivationPool::take_from(size_t slab, int64_t bytes) {
  Slab& from = slabs_[slab];
  const auto offset = from.allocator.allocate(bytes);
  if (!offset) {
    return {};
  }
  return {
      from.buffer.narrow(0, *offset, bytes),
      from.marks.marks_of(*offset, *offset + bytes),
      slab,
      *offset};
}

void HostActivationPool::give_back(HostBlock& block) {
  Slab& slab = slabs_[block.slab];
  slab.allocator.release(block.offset);
  slab.marks.leave(
      block.offset, block.offset + block.bytes.numel(), block.after);
  block = {};
}

bool HostActivationPool::add_slab(int64_t bytes) {
  const int64_t needed = HostMemory::rounded(bytes);
  const int64_t free =
      memory_.free_bytes() / HostMemory::kPage * HostMemory::kPage;
  if (needed > free) {
    return false;
  }
  const int64_t capacity = std::min(std::max(needed, kSlabBytes), free);
  try {
    slabs_.push_back(
        {memory_.allocate("activations", MemoryPurpose::kActivations, capacity),
         runtime::OffsetAllocator(capacity),
         {}});
  } catch (const Error&) {
    return false; // the system has no more
  }
  return true;
}

} // namespace tessera::offload
