// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ResidencyPlan` says when each group is unsharded, resharded and reduced: it
// is made from a recorded step, then followed. Pure arithmetic over group
// numbers; no tensors.

#include "tessera/runtime/memory/offset_allocator.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

/// An event between two optimizer steps, in order.
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
  /// The end of the gather arena at which a slot is taken.
  runtime::OffsetAllocator::End end = runtime::OffsetAllocator::End::kLow;

  bool operator==(const PlanAction&) const = default;
};

/// A touch or a backward end, and the actions performed there.
struct PlanEntry {
  PlanEvent::Kind kind = PlanEvent::Kind::kTouch;
  std::vector<int> groups;
  bool in_backward = false;
  /// Before the groups are waited for: only what could not be prefetched.
  std::vector<PlanAction> before;
  /// When they are readable, before the operator runs: reductions of complete
  /// gradients, then reshards and unshards for what comes next.
  std::vector<PlanAction> after;
};

struct ResidencyPlan {
  std::vector<PlanAction> start; ///< right after the optimizer step
  std::vector<PlanEntry> entries;
  /// Number of unshards for which operators wait from their issue on, because
  /// there was no room to prefetch them.
  int exposed_unshards = 0;
};

struct PlanLimits {
  std::vector<int64_t> group_bytes; ///< whole size of each group
  int64_t capacity_bytes = 0; ///< of the arena that holds unsharded groups
  /// Number of groups unsharded ahead of the one in use; more if the next
  /// operator uses several at once.
  int prefetch_depth = 1;
  /// Per group: stays unsharded from its first to its last use, even if others
  /// need room (FSDP's reshard_after_forward = false). Empty: no group does.
  std::vector<bool> stays = {};
  /// Per group: its gradients are kept whole and reduced outside of the plan.
  /// Empty: no group's are.
  std::vector<bool> keeps_gradients = {};

  bool stays_resident(int group) const {
    return !stays.empty() && stays[static_cast<size_t>(group)];
  }
};

/// Makes a plan from a recorded step: every group is unsharded up to
/// `prefetch_depth` groups ahead of its use and stays until its room is needed,
/// when the groups needed last are resharded first; its gradients are reduced
/// at the first touch after the last of them arrived, or when backward ends.
/// Deterministic: ranks with equal events get equal plans.
/// @return nothing when the groups of some operator do not fit in the capacity
///   together.
std::optional<ResidencyPlan> compile_plan(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits);

/// Returns, per group, the entry with its last reduction, after which its
/// gradients are final.
/// @param weights_too only if no operator uses the group after that entry, so
///   that its weights may change.
std::vector<std::optional<size_t>> final_reductions(
    const ResidencyPlan& plan,
    bool weights_too);

/// Returns the smallest of a few candidate capacities with which the events can
/// be followed without an exposed unshard.
/// @param limits its capacity is ignored.
int64_t capacity_without_exposed_unshards(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits);

/// Returns the largest number of bytes of gradients that are collected or in
/// reduction at the same time. A reduction in flight ends when the next one
/// begins, or when the one that is due next needs its room.
/// @param group_bytes whole size of each group's gradients.
int64_t peak_reduce_bytes(
    const std::vector<PlanEvent>& events,
    const std::vector<int64_t>& group_bytes);

/// Returns the expected events of a feed-forward model, before a step is
/// recorded: forward in registration order, backward in reverse.
/// @param blocks the groups that each block of the model uses, sorted.
/// @param trainable per group.
/// @param scattered per group: its gradients arrive throughout backward.
std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered);

/// As above, from the blocks by which each group is used.
/// @param tied groups whose weights have two names; they are touched again at
///   the end of forward, as when a head shares its weight with the embedding.
std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks_of_group,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered,
    const std::vector<int>& tied);

/// Returns a hash (64-bit FNV-1a): equal for equal events and, collisions
/// aside, different for different ones.
uint64_t hash_of(const std::vector<PlanEvent>& events);

} // namespace tessera::sharding
