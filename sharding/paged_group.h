// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PagedGroup` is a page of a pager: its weights, its gradients, and what the
// pager notes of both.

#include "tessera/sharding/gradient_bucket.h"
#include "tessera/sharding/param_group.h"

#include <cstdint>
#include <memory>
#include <optional>

namespace tessera::sharding {

struct PagedGroup : ParamGroup {
  using ParamGroup::ParamGroup;

  std::unique_ptr<GradientBucket> gradients; ///< null: it is frozen

  // Residency.
  uint64_t touched_epoch = 0; ///< of the plan entry that last used it
  uint64_t last_use = 0; ///< for least-recently-used eviction
  uint64_t unshard_sequence = 0; ///< of its last unshard
  int pins = 0; ///< gather scopes that hold it
  int writable_pins = 0; ///< those of them that write to it
  bool written = false; ///< by a gather scope, since it was unsharded

  // Reductions.
  uint64_t reduce_sequence = 0; ///< of its last reduction
  bool reduction_is_final = false; ///< the one in progress
  /// The entry of the train plan at which its gradients are final.
  std::optional<size_t> final_reduction;
  /// Gradients that arrived in this step, and the number that makes it
  /// complete. With a world size of one they replace the plan.
  int arrivals = 0;
  int expected_arrivals = 0;
};

} // namespace tessera::sharding
