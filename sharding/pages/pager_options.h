// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagerOptions` are the options of an engine that its pager needs.

#include "tessera/sharding/groups/precision.h"
#include "tessera/sharding/pages/sharding_options.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

struct PagerOptions : ShardingOptions {
  PrecisionPolicy precision;
  /// Groups are updated during backward, as soon as their gradients are final,
  /// so that gradients need no memory of their own.
  bool update_in_backward = false;
  /// Further names of parameters, which patterns match, too.
  OtherNames other_names;
};

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const PagerOptions& options);

/// Returns whether gradients stay whole between backward passes.
/// @param zero_stage ZeRO stage of the group, if it has its own.
bool keeps_full_gradients(
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

} // namespace tessera::sharding
