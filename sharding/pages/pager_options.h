// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagerOptions` determine how a module is sharded.

#include "tessera/sharding/groups/group_policy.h"
#include "tessera/sharding/groups/precision.h"

#include <cstdint>
#include <optional>

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

struct PagerOptions {
  GroupPolicy groups;
  PrecisionPolicy precision;

  /// ZeRO stage, i.e. what is sharded: 1 = optimizer state, 2 = also gradients,
  /// 3 = also parameters. With ZeRO stages 1 and 2, a group that was unsharded
  /// stays so until the step; with ZeRO stage 1, gradients are accumulated with
  /// kKeepWhole.
  int zero_stage = 3;
  /// By default kReduceEachBackward; kKeepWhole with ZeRO stage 1.
  std::optional<GradientAccumulation> accumulation;

  /// Limit in bytes for unsharded groups, in place of what zero_stage implies:
  /// as many groups as fit stay unsharded; those needed last are resharded
  /// first.
  std::optional<int64_t> gather_bytes;

  /// Hybrid sharding: each group of this many neighboring ranks (those of a
  /// node) shards the parameters and holds one replica of the model. 0: all
  /// ranks.
  int shard_ranks = 0;

  /// Groups are updated during backward, as soon as their gradients are final,
  /// so that gradients need no memory of their own. Set by
  /// EngineOptions::update_in_backward.
  bool update_in_backward = false;

  /// Number of groups that are unsharded ahead of the one in use.
  int prefetch_depth = 1;
  /// Broadcasts rank 0's parameters and buffers to all ranks at the start.
  bool broadcast_from_rank0 = true;
};

void visit_fields(runtime::OptionFields& fields, PagerOptions& options);

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const PagerOptions& options);

/// Returns whether gradients stay whole between backward passes.
/// @param zero_stage ZeRO stage of the group, if it has its own.
bool keeps_whole_gradients(
    const PagerOptions& options,
    std::optional<int> zero_stage);

/// The types of a group's gradients.
struct GradientTypes {
  at::ScalarType slot; ///< in which a backward collects and reduces them
  at::ScalarType shard; ///< in which those of several backward passes add up

  /// Elements of `slot` that a slot has: the whole gradients, and behind them
  /// room for what a shard that rests elsewhere is added to, where that does
  /// not fit into the part of the slot that a reduction leaves free.
  /// @param padded_numel, shard_numel of the group's FlatLayout.
  /// @param stored whether the shard rests on another tier than the device.
  int64_t slot_numel(int64_t padded_numel, int64_t shard_numel, bool stored)
      const;
};

/// @param ranks whose gradients are averaged.
/// @param dtype in which the group's parameters are used.
/// @param zero_stage of the group, where it has its own.
GradientTypes gradient_types(
    const PagerOptions& options,
    int ranks,
    at::ScalarType dtype,
    std::optional<int> zero_stage);

} // namespace tessera
