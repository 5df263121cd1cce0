// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardPlacement` decides where the shards of a model rest; implemented
// outside of the pager.

#include "tessera/runtime/memory/shard_store.h"
#include "tessera/sharding/grouping.h"
#include "tessera/sharding/shard_mesh.h"

#include <vector>

namespace tessera::sharding {

class ShardPlacement {
 public:
  virtual ~ShardPlacement() = default;

  /// Called once, before anything is sharded.
  virtual void plan(
      const std::vector<GroupSpec>& groups,
      const ShardMesh& mesh) = 0;

  /// Return the stores for this rank's shard of group number `group`; null: it
  /// rests on the parameters' device. Called after plan(). master_store() is
  /// for master weights that the group has in addition to its parameters;
  /// gradient_store() is called only if the group is trained.
  virtual runtime::ShardStore* parameter_store(size_t group) = 0;
  virtual runtime::ShardStore* master_store(size_t group) = 0;
  virtual runtime::ShardStore* gradient_store(size_t group) = 0;
};

} // namespace tessera::sharding
