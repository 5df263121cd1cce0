// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where the shards of a model rest, as somebody else decides.

#include "tessera/runtime/memory/shard_store.h"
#include "tessera/sharding/grouping.h"
#include "tessera/sharding/shard_mesh.h"

#include <vector>

namespace tessera {

class ShardPlacement {
 public:
  virtual ~ShardPlacement() = default;

  /// Called once, before anything is divided.
  virtual void plan(
      const std::vector<GroupSpec>& groups,
      const ShardMesh& mesh) = 0;

  /// The store for the master weights of group number `group`, if it has its
  /// own; null: they rest on the parameters' device. After plan().
  virtual ShardStore* master_store(size_t group) = 0;
};

} // namespace tessera
