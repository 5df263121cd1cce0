// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostStore` keeps flat tensors in host memory.

#include "tessera/offload/stores/host_memory.h"
#include "tessera/runtime/memory/shard_store.h"

namespace tessera::offload {

/// The host tier: one slab per tensor, which can be used in place.
class HostStore : public runtime::ShardStore {
 public:
  /// @param memory must outlive the store.
  explicit HostStore(HostMemory& memory) : memory_(memory) {}

  MemoryTier tier() const override {
    return MemoryTier::kHost;
  }
  std::unique_ptr<runtime::StoredShard> reserve(
      const std::string& name,
      MemoryPurpose purpose,
      int64_t numel,
      at::ScalarType dtype) override;

 private:
  HostMemory& memory_;
};

} // namespace tessera::offload
