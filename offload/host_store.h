// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flat tensors at rest in host memory.

#include "tessera/offload/host_memory.h"
#include "tessera/runtime/memory/shard_store.h"

namespace tessera {

/// The tier of the host: a slab per tensor, on which work can be done in place.
class HostStore : public ShardStore {
 public:
  /// @param memory outlives the store.
  explicit HostStore(HostMemory& memory) : memory_(memory) {}

  MemoryTier tier() const override {
    return MemoryTier::kHost;
  }
  std::unique_ptr<StoredShard> reserve(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype) override;
  int64_t bytes_for(int64_t numel, at::ScalarType dtype) const override;

 private:
  HostMemory& memory_;
};

} // namespace tessera
