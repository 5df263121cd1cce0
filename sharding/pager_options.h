// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a user decides about the division of a module.

#include "tessera/sharding/grouping.h"
#include "tessera/sharding/precision.h"
#include "tessera/sharding/shard_mesh.h"

#include <cstdint>
#include <optional>

namespace tessera {

/// What happens to gradients between the backward passes of one step.
enum class GradientAccumulation {
  /// Each backward reduces them into this rank's shard: least memory.
  kReduceEachBackward,
  /// They stay whole on every rank and are reduced once, by the step: least
  /// communication.
  kKeepWhole,
};

struct PagerOptions {
  GroupPolicy groups;
  PrecisionPolicy precision;

  /// What is divided over the ranks: 1 = optimizer state, 2 = gradients too,
  /// 3 = parameters too. At 1 and 2 a group that was gathered stays until the
  /// step; at 1 gradients are accumulated with kKeepWhole.
  int zero_stage = 3;
  /// By default kReduceEachBackward, kKeepWhole at stage 1.
  std::optional<GradientAccumulation> accumulation;

  /// Bytes for unsharded groups, in place of what zero_stage asks for: as many
  /// groups stay as fit, those needed last going first.
  std::optional<int64_t> gather_bytes;

  /// Hybrid sharding: so many neighbouring ranks (those of a node) divide the
  /// parameters, and every such group of ranks holds them all. 0: all ranks.
  int shard_ranks = 0;

  /// Groups are updated during backward, as soon as their gradients are final,
  /// which then need no memory of their own. See
  /// EngineOptions::update_in_backward, which sets it.
  bool update_in_backward = false;

  /// Groups gathered ahead of the one in use.
  int prefetch_depth = 1;
  /// Starts every rank from rank 0's parameters and buffers.
  bool broadcast_from_rank0 = true;
};

/// @throws tessera::Error naming the option, its value and what it may be.
void check(const PagerOptions& options);

/// Whether gradients stay whole between backward passes.
/// @param zero_stage of a group that has its own.
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

/// @param dtype in which the group's parameters are used.
/// @param zero_stage of the group, where it has its own.
GradientTypes gradient_types(
    const PagerOptions& options,
    const ShardMesh& mesh,
    at::ScalarType dtype,
    std::optional<int> zero_stage);

} // namespace tessera
