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

  /// The stores for this rank's part of group number `group`; null: it rests on
  /// the parameters' device. After plan(). The master weights are those that
  /// the group has beside its parameters; gradients are asked for only where it
  /// is trained.
  virtual ShardStore* parameter_store(size_t group) = 0;
  virtual ShardStore* master_store(size_t group) = 0;
  virtual ShardStore* gradient_store(size_t group) = 0;
};

} // namespace tessera
