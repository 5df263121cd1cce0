// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/residency_plan.h"

#include "tessera/runtime/memory/offset_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

namespace tessera {

namespace {

using Events = std::vector<PlanEvent>;
using Action = PlanAction::Kind;
using Kind = PlanEvent::Kind;

PlanEvent touch(std::vector<int> groups, bool in_backward = false) {
  return {Kind::kTouch, std::move(groups), in_backward};
}
PlanEvent arrival(int group) {
  return {Kind::kArrival, {group}, true};
}
PlanEvent backward_end() {
  return {Kind::kBackwardEnd, {}, true};
}

std::string text_of(const std::vector<PlanAction>& actions) {
  std::string text;
  for (const auto& action : actions) {
    const char* name = action.kind == Action::kUnshard ? "+"
        : action.kind == Action::kReshard              ? "-"
                                                       : "r";
    text += name + std::to_string(action.group) + " ";
  }
  return text;
}

std::string text_of(const ResidencyPlan& plan) {
  std::string text = text_of(plan.start);
  for (const auto& entry : plan.entries) {
    text += "| " + text_of(entry.before) + "* " + text_of(entry.after);
  }
  return text;
}

/// Carries the plan out in an allocator of the given capacity, as the pager
/// does, and expects that every group is there when it is used.
void expect_can_be_followed(const ResidencyPlan& plan, const PlanLimits& limits) {
  OffsetAllocator allocator(limits.capacity_bytes);
  std::map<int, int64_t> offsets;
  int exposed = 0;
  const auto carry_out = [&](const std::vector<PlanAction>& actions,
                             const std::vector<int>& in_use) {
    for (const auto& action : actions) {
      if (action.kind == Action::kUnshard) {
        ASSERT_EQ(offsets.count(action.group), 0) << "unsharded twice";
        const auto offset = allocator.allocate(
            limits.group_bytes[static_cast<size_t>(action.group)]);
        ASSERT_TRUE(offset.has_value())
            << "no room for " << action.group << " in " << text_of(plan);
        offsets[action.group] = *offset;
      } else if (action.kind == Action::kReshard) {
        ASSERT_EQ(offsets.count(action.group), 1) << "dropped twice";
        ASSERT_EQ(
            std::count(in_use.begin(), in_use.end(), action.group), 0)
            << "dropped while in use";
        allocator.release(offsets.at(action.group));
        offsets.erase(action.group);
      }
    }
  };
  carry_out(plan.start, {});
  for (const auto& entry : plan.entries) {
    exposed += static_cast<int>(std::count_if(
        entry.before.begin(), entry.before.end(), [](const auto& action) {
          return action.kind == Action::kUnshard;
        }));
    ASSERT_NO_FATAL_FAILURE(carry_out(entry.before, {}));
    // The operator runs when `after` has been issued.
    ASSERT_NO_FATAL_FAILURE(carry_out(entry.after, entry.groups));
    for (const int group : entry.groups) {
      ASSERT_EQ(offsets.count(group), 1) << "not there: " << group;
    }
  }
  EXPECT_EQ(exposed, plan.exposed_unshards);
}

/// Every group is reduced once per backward: at the first touch, or end, after
/// its last gradient.
void expect_reductions_are_due(const ResidencyPlan& plan, const Events& events) {
  std::map<int, size_t> last_arrival;
  size_t entry = 0;
  size_t first_entry = 0;
  std::vector<std::set<int>> expected(plan.entries.size());
  for (const auto& event : events) {
    if (event.kind == Kind::kArrival) {
      // Due in the next entry; a later arrival takes its place.
      last_arrival[event.groups[0]] = entry;
      continue;
    }
    if (event.kind == Kind::kBackwardEnd) {
      for (const auto& [group, due] : last_arrival) {
        ASSERT_GE(due, first_entry);
        expected[due].insert(group);
      }
      last_arrival.clear();
      first_entry = entry + 1;
    }
    ++entry;
  }
  ASSERT_EQ(entry, plan.entries.size());
  for (size_t i = 0; i < entry; ++i) {
    std::set<int> found;
    for (const auto& action : plan.entries[i].after) {
      if (action.kind == Action::kReduce) {
        EXPECT_TRUE(found.insert(action.group).second) << "reduced twice";
      }
    }
    EXPECT_EQ(found, expected[i]) << "entry " << i;
  }
}

/// Nested, repeated and skipping, as a program's control flow may be.
Events random_events(std::mt19937& random, int groups, bool single) {
  const auto pick = [&](int end) {
    return static_cast<int>(random() % static_cast<unsigned>(end));
  };
  Events events;
  for (int pass = 0; pass < 1 + pick(3); ++pass) {
    for (int i = 0; i < pick(20); ++i) {
      std::set<int> used{pick(groups)};
      while (!single && pick(4) == 0) {
        used.insert(pick(groups));
      }
      events.push_back(touch({used.begin(), used.end()}));
    }
    for (int i = 0; i < pick(30); ++i) {
      if (pick(2) == 0) {
        events.push_back(touch({pick(groups)}, true));
      } else {
        events.push_back(arrival(pick(groups)));
      }
    }
    events.push_back(backward_end());
  }
  return events;
}

} // namespace

TEST(ResidencyPlan, FeedForwardIsPrefetchedOneAhead) {
  const Events events = registration_order_events(
      {true, true, true, true}, {false, false, false, false});
  const PlanLimits limits{{64, 64, 64, 64}, 128, 1};
  const auto plan = compile_plan(events, limits);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->exposed_unshards, 0);
  // 3 stays over the turn; 0 is used last and dropped for nothing.
  EXPECT_EQ(
      text_of(*plan),
      "+0 +1 | * | * -0 +2 | * -1 +3 | * "
      "| * | * r3 -3 +1 | * r2 -2 +0 | * r1 | * r0 ");
  expect_can_be_followed(*plan, limits);
  expect_reductions_are_due(*plan, events);
}

TEST(ResidencyPlan, NothingIsGatheredTwiceWhenAllFits) {
  const Events events =
      registration_order_events({true, true, true}, {false, false, false});
  const auto plan = compile_plan(events, {{64, 64, 64}, 192, 1});
  ASSERT_TRUE(plan.has_value());
  const std::string text = text_of(*plan);
  EXPECT_EQ(std::count(text.begin(), text.end(), '+'), 3);
  EXPECT_EQ(std::count(text.begin(), text.end(), '-'), 0);
}

TEST(ResidencyPlan, RoomForOneGroupOnlyIsExposedButRight) {
  const Events events =
      registration_order_events({true, true, true}, {false, false, false});
  const PlanLimits limits{{64, 64, 64}, 64, 1};
  const auto plan = compile_plan(events, limits);
  ASSERT_TRUE(plan.has_value());
  // 1 and 2 in forward, 1 and 0 in backward.
  EXPECT_EQ(plan->exposed_unshards, 4);
  expect_can_be_followed(*plan, limits);
}

TEST(ResidencyPlan, OperatorWhoseGroupsDoNotFitTogetherHasNoPlan) {
  EXPECT_FALSE(compile_plan({touch({0, 1})}, {{64, 64}, 64, 1}).has_value());
  EXPECT_FALSE(compile_plan({touch({0})}, {{128}, 64, 1}).has_value());
  EXPECT_TRUE(compile_plan({touch({0, 1})}, {{64, 64}, 128, 1}).has_value());
}

TEST(ResidencyPlan, NoEventsNoActions) {
  const auto plan = compile_plan({}, {{64}, 64, 1});
  ASSERT_TRUE(plan.has_value());
  EXPECT_TRUE(plan->start.empty());
  EXPECT_TRUE(plan->entries.empty());
}

TEST(ResidencyPlan, LateGradientsMoveTheReduction) {
  const Events events{
      touch({0}),
      touch({1}),
      touch({1}, true),
      arrival(0), // a first part
      arrival(1),
      touch({0}, true),
      arrival(0), // the rest
      backward_end()};
  const auto plan = compile_plan(events, {{64, 64}, 128, 1});
  ASSERT_TRUE(plan.has_value());
  expect_reductions_are_due(*plan, events);
  EXPECT_EQ(text_of(plan->entries[3].after), "r1 ");
  EXPECT_EQ(text_of(plan->entries[4].after), "r0 ");
}

TEST(ResidencyPlan, EachBackwardReducesAgain) {
  Events events;
  for (int i = 0; i < 2; ++i) {
    for (const auto& event : registration_order_events({true}, {false})) {
      events.push_back(event);
    }
  }
  const auto plan = compile_plan(events, {{64}, 64, 1});
  ASSERT_TRUE(plan.has_value());
  expect_reductions_are_due(*plan, events);
  const std::string text = text_of(*plan);
  EXPECT_EQ(std::count(text.begin(), text.end(), 'r'), 2);
}

TEST(ResidencyPlan, AnySequenceCanBeFollowedInAnyCapacity) {
  std::mt19937 random(7);
  int compiled = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int groups = 1 + static_cast<int>(random() % 7);
    PlanLimits limits;
    int64_t sum = 0;
    for (int g = 0; g < groups; ++g) {
      limits.group_bytes.push_back(1 + random() % 700);
      sum += limits.group_bytes.back() + 64;
    }
    limits.capacity_bytes = 1 + static_cast<int64_t>(random()) % sum;
    limits.prefetch_depth = static_cast<int>(random() % 4);
    const Events events = random_events(random, groups, trial % 2 == 0);
    const auto plan = compile_plan(events, limits);
    if (!plan) {
      continue;
    }
    ++compiled;
    SCOPED_TRACE("trial " + std::to_string(trial));
    ASSERT_NO_FATAL_FAILURE(expect_can_be_followed(*plan, limits));
    ASSERT_NO_FATAL_FAILURE(expect_reductions_are_due(*plan, events));
    EXPECT_EQ(text_of(*plan), text_of(*compile_plan(events, limits)));
  }
  EXPECT_GT(compiled, 150);
}

TEST(ResidencyPlan, CapacityIsEnoughAndNotMoreThanAll) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const int groups = 1 + static_cast<int>(random() % 7);
    std::vector<int64_t> bytes;
    int64_t all = 0;
    for (int g = 0; g < groups; ++g) {
      bytes.push_back(1 + random() % 700);
      all += (bytes.back() + 63) / 64 * 64;
    }
    const bool single = trial % 2 == 0;
    const Events events = random_events(random, groups, single);
    const int depth = 1 + static_cast<int>(random() % 2);
    const int64_t capacity =
        capacity_without_exposed_unshards(events, bytes, depth);
    EXPECT_LE(capacity, all);
    const auto plan = compile_plan(events, {bytes, capacity, depth});
    ASSERT_TRUE(plan.has_value()) << "trial " << trial;
    if (single) {
      // An operator over several groups may use more than the depth ahead.
      EXPECT_EQ(plan->exposed_unshards, 0) << "trial " << trial;
    }
  }
}

TEST(ResidencyPlan, CapacityOfAStackIsTwoBlocks) {
  const Events events = registration_order_events(
      std::vector<bool>(12, true), std::vector<bool>(12, false));
  EXPECT_EQ(
      capacity_without_exposed_unshards(
          events, std::vector<int64_t>(12, 6400), 1),
      2 * 6400);
}

TEST(ResidencyPlan, PeakOfReductionsIsTwoBlocks) {
  const std::vector<int64_t> bytes(5, 6400);
  const Events events = registration_order_events(
      std::vector<bool>(5, true), std::vector<bool>(5, false));
  const int64_t peak = peak_reduce_bytes(events, bytes);
  // One is collected while the one before is on its way.
  EXPECT_GE(peak, 2 * 6400);
  EXPECT_LE(peak, 2 * (6400 + OffsetAllocator::kAlignment));
  EXPECT_EQ(peak_reduce_bytes({}, bytes), 0);
}

TEST(ResidencyPlan, FrozenGroupsAreNotReduced) {
  const Events events =
      registration_order_events({false, true}, {false, false});
  const auto plan = compile_plan(events, {{64, 64}, 128, 1});
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(text_of(*plan).find("r0"), std::string::npos);
  EXPECT_NE(text_of(*plan).find("r1"), std::string::npos);
}

TEST(ResidencyPlan, HashTellsEventsApart) {
  const std::vector<Events> all{
      {},
      {touch({0})},
      {touch({1})},
      {touch({0}, true)},
      {touch({0, 1})},
      {touch({0}), touch({1})},
      {touch({1}), touch({0})},
      {arrival(0)},
      {backward_end()},
      {touch({0}), backward_end()}};
  std::set<uint64_t> hashes;
  for (const auto& events : all) {
    EXPECT_TRUE(hashes.insert(hash_of(events)).second);
    EXPECT_EQ(hash_of(events), hash_of(Events(events)));
  }
}

} // namespace tessera
