// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/residency_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace tessera::sharding {

namespace {

using EventKind = PlanEvent::Kind;

/// Strategies for placing groups of different sizes so as to avoid
/// fragmentation; which one is best depends on the model.
enum class Placement {
  kLow, ///< always at the first position that fits
  kAlternate, ///< alternately at either end
  kBySize, ///< small ones at the other end
};

/// Simulates which groups are unsharded while the entries are visited in order.
class ResidencySimulation {
 public:
  ResidencySimulation(
      const std::vector<PlanEntry>& entries,
      const PlanLimits& limits,
      Placement placement)
      : limits_(limits),
        placement_(placement),
        allocator_(limits.capacity_bytes) {
    for (const int64_t bytes : limits.group_bytes) {
      largest_ = std::max(largest_, bytes);
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      for (const int group : entries[i].groups) {
        uses_[group].push_back(i);
      }
    }
  }

  bool is_resident(int group) const {
    return offsets_.count(group) > 0;
  }

  /// Makes room for `group` and places it, appending the actions.
  /// @param now index of the current entry.
  /// @param keep groups that must stay.
  /// @param only_later evict only groups that are needed later than `group`.
  /// @return false, with nothing changed, when there is no room.
  bool place(
      int group,
      size_t now,
      const std::vector<int>& keep,
      bool only_later,
      std::vector<PlanAction>& actions) {
    const auto saved_allocator = allocator_;
    const auto saved_offsets = offsets_;
    std::vector<PlanAction> made;
    const auto end = next_end(group);
    while (true) {
      if (const auto offset =
              allocator_.allocate(limits_.group_bytes[group], end)) {
        offsets_[group] = *offset;
        ++placed_;
        made.push_back({PlanAction::Kind::kUnshard, group, end});
        actions.insert(actions.end(), made.begin(), made.end());
        return true;
      }
      const auto victim = find_victim(now, keep);
      if (!victim ||
          (only_later && next_use(*victim, now) <= next_use(group, now))) {
        allocator_ = saved_allocator;
        offsets_ = saved_offsets;
        return false;
      }
      allocator_.release(offsets_.at(*victim));
      offsets_.erase(*victim);
      made.push_back({PlanAction::Kind::kReshard, *victim});
    }
  }

 private:
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();

  runtime::OffsetAllocator::End next_end(int group) const {
    const bool high =
        (placement_ == Placement::kAlternate && placed_ % 2 == 1) ||
        (placement_ == Placement::kBySize &&
         limits_.group_bytes[group] * 2 < largest_);
    return high ? runtime::OffsetAllocator::End::kHigh
                : runtime::OffsetAllocator::End::kLow;
  }

  /// Returns the first entry after `now` that uses the group.
  size_t next_use(int group, size_t now) const {
    const auto found = uses_.find(group);
    if (found == uses_.end()) {
      return kNever;
    }
    const auto use =
        std::upper_bound(found->second.begin(), found->second.end(), now);
    return use == found->second.end() ? kNever : *use;
  }

  std::optional<int> find_victim(size_t now, const std::vector<int>& keep)
      const {
    std::optional<int> victim;
    for (const auto& [group, offset] : offsets_) {
      if (std::find(keep.begin(), keep.end(), group) != keep.end() ||
          (limits_.stays_resident(group) && next_use(group, now) != kNever)) {
        continue;
      }
      if (!victim || next_use(group, now) > next_use(*victim, now)) {
        victim = group;
      }
    }
    return victim;
  }

  const PlanLimits& limits_;
  Placement placement_;
  int64_t largest_ = 0;
  int placed_ = 0;
  runtime::OffsetAllocator allocator_;
  std::map<int, int64_t> offsets_;
  std::map<int, std::vector<size_t>> uses_;
};

/// Returns the groups of the next touches after entry `from`, at least `depth`
/// that are not in `current`; a touch is included with all its groups or not at
/// all.
std::vector<int> upcoming_groups(
    const std::vector<PlanEntry>& entries,
    size_t from,
    const std::vector<int>& current,
    int depth) {
  std::vector<int> upcoming;
  for (size_t i = from; i < entries.size(); ++i) {
    if (static_cast<int>(upcoming.size()) >= depth) {
      return upcoming;
    }
    for (const int group : entries[i].groups) {
      const bool known =
          std::find(current.begin(), current.end(), group) != current.end() ||
          std::find(upcoming.begin(), upcoming.end(), group) != upcoming.end();
      if (!known) {
        upcoming.push_back(group);
      }
    }
  }
  return upcoming;
}

/// Returns the positions of each group's last arrival before each backward end.
std::set<size_t> find_last_arrivals(const std::vector<PlanEvent>& events) {
  std::set<size_t> last_arrivals;
  std::map<int, size_t> latest;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kArrival) {
      latest[events[i].groups[0]] = i;
    } else if (events[i].kind == EventKind::kBackwardEnd) {
      for (const auto& [group, position] : latest) {
        last_arrivals.insert(position);
      }
      latest.clear();
    }
  }
  return last_arrivals;
}

/// Returns touches and backward ends, with the reductions where they are due.
std::vector<PlanEntry> entries_with_reductions(
    const std::vector<PlanEvent>& events,
    const std::vector<bool>& keeps_gradients = {}) {
  const auto last_arrivals = find_last_arrivals(events);
  const auto is_kept = [&keeps_gradients](int group) {
    return !keeps_gradients.empty() &&
           keeps_gradients[static_cast<size_t>(group)];
  };
  std::vector<PlanEntry> entries;
  std::vector<PlanAction> due;
  for (size_t i = 0; i < events.size(); ++i) {
    const PlanEvent& event = events[i];
    if (event.kind == EventKind::kArrival) {
      if (last_arrivals.count(i) && !is_kept(event.groups[0])) {
        due.push_back({PlanAction::Kind::kReduce, event.groups[0]});
      }
      continue;
    }
    PlanEntry entry;
    entry.kind = event.kind;
    entry.groups = event.groups;
    entry.in_backward = event.in_backward;
    entry.after = std::move(due);
    due.clear();
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::optional<ResidencyPlan> compile_plan(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits,
    Placement placement) {
  ResidencyPlan plan;
  plan.entries = entries_with_reductions(events, limits.keeps_gradients);
  ResidencySimulation simulation(plan.entries, limits, placement);
  const auto prefetch = [&](size_t now,
                            size_t from,
                            std::vector<int> keep,
                            std::vector<PlanAction>& actions) {
    for (const int group :
         upcoming_groups(plan.entries, from, keep, limits.prefetch_depth)) {
      if (!simulation.is_resident(group) &&
          !simulation.place(group, now, keep, /*only_later=*/true, actions)) {
        return;
      }
      keep.push_back(group);
    }
  };

  // The first group counts as the one in use; the depth is counted after it.
  const auto first = upcoming_groups(plan.entries, 0, {}, 1);
  for (const int group : first) {
    if (!simulation.place(group, 0, {}, /*only_later=*/false, plan.start)) {
      return std::nullopt;
    }
  }
  prefetch(0, 0, first, plan.start);

  for (size_t i = 0; i < plan.entries.size(); ++i) {
    PlanEntry& entry = plan.entries[i];
    for (const int group : entry.groups) {
      if (simulation.is_resident(group)) {
        continue;
      }
      ++plan.exposed_unshards;
      if (!simulation.place(
              group, i, entry.groups, /*only_later=*/false, entry.before)) {
        return std::nullopt;
      }
    }
    if (entry.kind == EventKind::kTouch) {
      prefetch(i, i + 1, entry.groups, entry.after);
    }
  }
  return plan;
}

} // namespace

std::optional<ResidencyPlan> compile_plan(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits) {
  std::optional<ResidencyPlan> best;
  for (const auto placement :
       {Placement::kLow, Placement::kAlternate, Placement::kBySize}) {
    auto plan = compile_plan(events, limits, placement);
    if (plan && (!best || plan->exposed_unshards < best->exposed_unshards)) {
      best = std::move(plan);
    }
    if (best && best->exposed_unshards == 0) {
      break;
    }
  }
  return best;
}

std::vector<std::optional<size_t>> final_reductions(
    const ResidencyPlan& plan,
    bool weights_too) {
  std::vector<std::optional<size_t>> reductions;
  const auto at = [&reductions](int group) -> std::optional<size_t>& {
    const auto index = static_cast<size_t>(group);
    reductions.resize(std::max(reductions.size(), index + 1));
    return reductions[index];
  };
  for (size_t i = 0; i < plan.entries.size(); ++i) {
    for (const PlanAction& action : plan.entries[i].after) {
      if (action.kind == PlanAction::Kind::kReduce) {
        at(action.group) = i;
      }
    }
    // The operator runs after the entry's actions.
    for (const int group : plan.entries[i].groups) {
      if (weights_too) {
        at(group).reset();
      }
    }
  }
  return reductions;
}

int64_t capacity_without_exposed_unshards(
    const std::vector<PlanEvent>& events,
    const PlanLimits& limits) {
  const auto rounded = [&](int group) {
    constexpr int64_t kAlign = runtime::OffsetAllocator::kAlignment;
    return (limits.group_bytes[group] + kAlign - 1) / kAlign * kAlign;
  };
  int64_t all = 0;
  int64_t staying = 0;
  for (size_t i = 0; i < limits.group_bytes.size(); ++i) {
    const int group = static_cast<int>(i);
    all += rounded(group);
    staying += limits.stays_resident(group) ? rounded(group) : 0;
  }
  const auto entries = entries_with_reductions(events);
  int64_t window = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    int64_t bytes = 0;
    const auto add = [&](int group) {
      bytes += limits.stays_resident(group) ? 0 : rounded(group);
    };
    for (const int group : entries[i].groups) {
      add(group);
    }
    for (const int group : upcoming_groups(
             entries, i + 1, entries[i].groups, limits.prefetch_depth)) {
      add(group);
    }
    window = std::max(window, bytes);
  }
  // Room between slots of different sizes is not always usable; a few eighths
  // more suffice.
  PlanLimits tried = limits;
  for (const int64_t eighths : {8, 9, 10, 12, 16, 24}) {
    tried.capacity_bytes = std::min(staying + window * eighths / 8, all);
    const auto plan = compile_plan(events, tried);
    // Without prefetching all unshards are exposed, for any capacity.
    if (plan && (plan->exposed_unshards == 0 || limits.prefetch_depth == 0)) {
      return tried.capacity_bytes;
    }
  }
  return all;
}

int64_t peak_reduce_bytes(
    const std::vector<PlanEvent>& events,
    const std::vector<int64_t>& group_bytes) {
  const auto entries = entries_with_reductions(events);
  const auto last_arrivals = find_last_arrivals(events);
  // The entries contain no arrivals; iterate over both in parallel.
  size_t entry = 0;
  std::set<int> open;
  std::set<int> complete;
  std::set<int> reducing;
  const auto bytes_of = [&](const std::set<int>& groups) {
    int64_t bytes = 0;
    for (const int group : groups) {
      bytes += group_bytes[group] + runtime::OffsetAllocator::kAlignment;
    }
    return bytes;
  };
  int64_t peak = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == EventKind::kArrival) {
      const int group = events[i].groups[0];
      open.insert(group);
      // A complete group waits for its reduction: the previous reduction, begun
      // at an earlier touch, releases its slot if there is no other.
      peak = std::max(
          peak, bytes_of(open) + (complete.empty() ? bytes_of(reducing) : 0));
      if (last_arrivals.count(i)) {
        complete.insert(group);
      }
      continue;
    }
    for (const PlanAction& action : entries[entry].after) {
      if (action.kind == PlanAction::Kind::kReduce) {
        open.erase(action.group);
        complete.erase(action.group);
        reducing = {action.group};
      }
    }
    if (events[i].kind == EventKind::kBackwardEnd) {
      open.clear();
      complete.clear();
      reducing.clear();
    }
    ++entry;
  }
  return peak;
}

std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered) {
  std::vector<PlanEvent> events;
  const auto add_scattered_arrivals = [&] {
    for (int g = 0; g < static_cast<int>(trainable.size()); ++g) {
      if (trainable[g] && scattered[g]) {
        events.push_back({EventKind::kArrival, {g}, true});
      }
    }
  };
  for (const auto& block : blocks) {
    events.push_back({EventKind::kTouch, block, false});
  }
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    events.push_back({EventKind::kTouch, *block, true});
    if (block == blocks.rbegin()) {
      add_scattered_arrivals();
    }
    for (const int g : *block) {
      if (trainable[g] && !scattered[g]) {
        events.push_back({EventKind::kArrival, {g}, true});
      }
    }
  }
  add_scattered_arrivals();
  events.push_back({EventKind::kBackwardEnd, {}, true});
  return events;
}

std::vector<PlanEvent> registration_order_events(
    const std::vector<std::vector<int>>& blocks_of_group,
    const std::vector<bool>& trainable,
    const std::vector<bool>& scattered,
    const std::vector<int>& tied) {
  std::map<int, std::vector<int>> groups_of_block;
  for (size_t g = 0; g < blocks_of_group.size(); ++g) {
    for (const int block : blocks_of_group[g]) {
      groups_of_block[block].push_back(static_cast<int>(g));
    }
  }
  std::vector<std::vector<int>> blocks;
  for (auto& [block, groups] : groups_of_block) {
    blocks.push_back(std::move(groups));
  }
  auto events = registration_order_events(blocks, trainable, scattered);
  const auto backward =
      std::find_if(events.begin(), events.end(), [](const PlanEvent& event) {
        return event.in_backward;
      });
  std::vector<PlanEvent> again;
  for (const int group : tied) {
    again.push_back({EventKind::kTouch, {group}, false});
    again.push_back({EventKind::kTouch, {group}, true});
  }
  events.insert(backward, again.begin(), again.end());
  return events;
}

uint64_t hash_of(const std::vector<PlanEvent>& events) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto mix = [&hash](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash ^= (value >> (8 * byte)) & 0xffU;
      hash *= 0x100000001b3ULL;
    }
  };
  for (const PlanEvent& event : events) {
    mix(static_cast<uint64_t>(event.kind));
    mix(event.in_backward ? 1 : 0);
    for (const int group : event.groups) {
      mix(static_cast<uint64_t>(group) + 2);
    }
    mix(~uint64_t{0});
  }
  return hash;
}

} // namespace tessera::sharding
