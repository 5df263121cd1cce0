// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShardingOptions` determine how a module is sharded.

#include "tessera/sharding/groups/group_policy.h"
#include "tessera/sharding/groups/module_options.h"
#include "tessera/sharding/pages/communication_options.h"

#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// What happens to gradients between the backward passes of one step.
enum class GradientAccumulation {
  /// Each backward reduces them into this rank's shard: least memory.
  kReduceEachBackward,
  /// Gradients stay whole on every rank and are reduced once, by the step:
  /// least communication.
  kKeepWhole,
};

struct ShardingOptions {
  GroupPolicy groups;
  /// Choices for modules by name. Of the rules that match, the first one that
  /// makes a choice applies; one that matches nothing is an error that names
  /// the nearest paths. configure() makes them for a module itself.
  std::vector<ModuleRule> modules;

  /// ZeRO stage, i.e. what is sharded: 1 = optimizer state, 2 = also gradients,
  /// 3 = also parameters. With ZeRO stages 1 and 2, a group that was unsharded
  /// stays so until the step; with ZeRO stage 1, gradients are accumulated with
  /// kKeepWhole. With MemoryBudget::device_bytes, groups stay unsharded as far
  /// as the budget has room, whatever the ZeRO stage.
  int zero_stage = 3;
  /// By default kReduceEachBackward; kKeepWhole with ZeRO stage 1.
  std::optional<GradientAccumulation> accumulation;

  /// Hybrid sharding: each group of this many neighboring ranks (those of a
  /// node) shards the parameters and holds one replica of the model. 0: all
  /// ranks.
  int shard_ranks = 0;

  CommunicationOptions communication;

  /// Number of groups that are unsharded ahead of the one in use.
  int prefetch_depth = 1;
  /// Broadcasts rank 0's parameters and buffers to all ranks at the start.
  bool broadcast_from_rank0 = true;
};

void visit_fields(runtime::OptionFields& fields, ShardingOptions& options);

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const ShardingOptions& options);

} // namespace tessera
