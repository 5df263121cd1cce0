// SPDX-License-Identifier: Apache-2.0
#pragma once
// When each group is unsharded, dropped and reduced: recorded once, then
// followed. Pure arithmetic over group numbers; no tensors.

#include "tessera/runtime/memory/offset_allocator.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// What happened between two optimizer steps, in order.
struct PlanEvent {
  enum class Kind {
    kTouch, ///< an operator used parameters of `groups`
    kArrival, ///< a gradient of `groups[0]` arrived
    kBackwardEnd,
  };
  Kind kind = Kind::kTouch;
  std::vector<int> groups; ///< sorted
  bool in_backward = false;

  bool operator==(const PlanEvent&) const = default;
};

struct PlanAction {
  enum class Kind { kReshard, kUnshard, kReduce };
  Kind kind = Kind::kUnshard;
  int group = 0;
  /// From which end of the gather slots a place is taken.
  OffsetAllocator::End end = OffsetAllocator::End::kLow;

  bool operator==(const PlanAction&) const = default;
};

/// A touch or a backward end, and what the issuer does there.
struct PlanEntry {
  PlanEvent::Kind kind = PlanEvent::Kind::kTouch;
  std::vector<int> groups;
  bool in_backward = false;
  /// Before the groups are waited for: only what could not be prefetched.
  std::vector<PlanAction> before;
  /// Once they are readable, before the operator runs: reductions of what is
  /// complete, then room and gathers for what comes next.
  std::vector<PlanAction> after;
};

struct ResidencyPlan {
  std::vector<PlanAction> start; ///< right after the optimizer step
  std::vector<PlanEntry> entries;
  /// Unshards that the operator has to wait for from their issue on, because
  /// there was no room to prefetch them.
  int exposed_unshards = 0;
};

struct PlanLimits {
  std::vector<int64_t> group_bytes; ///< whole size of each group
  int64_t capacity_bytes = 0; ///< of the buffer that holds unsharded groups
  /// Groups gathered ahead of the one in use; more where the next operator uses
  /// several at once.
  int prefetch_depth = 1;
  /// Per group: stays from its first use until its last, whatever room others
  /// want (FSDP's reshard_after_forward = false). Empty: none does.
  std::vector<bool> stays = {};
  /// Per group: its gradients are kept whole and reduced outside of the plan.
  /// Empty: none are.
  std::vector<bool> keeps_gradients = {};

  bool stays_resident(int group) const {
    return !stays.empty() && stays[static_cast<size_t>(group)];
  }
};

/// Turns a recorded step into a plan: every group is unsharded up to
/// `prefetch_depth` groups ahead of its use and stays until its room is needed,
/// the one needed last going first; its gradients are reduced at the first
/// touch after the last of them arrived, or when backward ends.
/// Deterministic: ranks with equal events get equal plans.
/// @return nothing when some operator's groups do not fit in the capacity
///   together.
std::optional<ResidencyPlan> compile_plan(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits);

/// Per group, the entry with its last reduction: then its gradients are final.
/// @param weights_too only if no operator uses the group from there on: then
/// its
///   weights are free to change.
std::vector<std::optional<size_t>> final_reductions(
    const ResidencyPlan& plan,
    bool weights_too);

/// The smallest capacity, of a short list of candidates, with which the events
/// can be followed without an exposed unshard.
/// @param limits its capacity is not looked at.
int64_t capacity_without_exposed_unshards(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits);

/// The bytes of gradients collected and in reduction at the same time: the
/// largest sum over the events. A reduction in flight ends when the next one
/// begins, or when one that is due next needs its room.
/// @param group_bytes whole size of each group's gradients.
int64_t peak_reduce_bytes(
    const std::vector<PlanEvent>& events,
    const std::vector<int64_t>& group_bytes);

/// The step one expects of a feed-forward model before the first is recorded:
/// forward in registration order, backward in reverse.
/// @param blocks the groups that each block of the model uses, sorted.
/// @param trainable per group; @param scattered groups whose gradients arrive
///   all over backward.
std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered);

/// The same from the blocks that each group is used by. Tied groups, of weights
/// with two names, are brought in again where forward ends: a head that shares
/// its weight with the embedding.
std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks_of_group,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered,
    const std::vector<int>& tied);

/// The same for equal events, different for different ones (64-bit FNV-1a).
uint64_t hash_of(const std::vector<PlanEvent>& events);

} // namespace tessera
