// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/residency_plan.h"

#include "tessera/runtime/memory/offset_allocator.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tessera::sharding::residency_plan_test {

namespace {

using Kind = PlanEvent::Kind;
using ActionKind = PlanAction::Kind;

/// Follows a plan with a real allocator and checks every promise it makes.
class PlanWalker {
 public:
  explicit PlanWalker(const PlanLimits& limits)
      : limits_(limits), allocator_(limits.capacity_bytes) {}

  void walk(const ResidencyPlan& plan) {
    run(plan.start);
    for (const PlanEntry& entry : plan.entries) {
      run(entry.before);
      exposed_ += static_cast<int>(std::count_if(
          entry.before.begin(), entry.before.end(), [](const auto& action) {
            return action.kind == ActionKind::kUnshard;
          }));
      for (const int group : entry.groups) {
        EXPECT_TRUE(offsets_.count(group)) << "group " << group;
      }
      run(entry.after);
      // The operator runs now: its groups must still be there.
      for (const int group : entry.groups) {
        EXPECT_TRUE(offsets_.count(group)) << "group " << group;
      }
    }
    EXPECT_EQ(exposed_, plan.exposed_unshards);
  }

  const std::map<int, int>& reductions() const {
    return reductions_;
  }

 private:
  void run(const std::vector<PlanAction>& actions) {
    for (const PlanAction& action : actions) {
      if (action.kind == ActionKind::kReduce) {
        ++reductions_[action.group];
      } else if (action.kind == ActionKind::kReshard) {
        ASSERT_TRUE(offsets_.count(action.group));
        allocator_.release(offsets_[action.group]);
        offsets_.erase(action.group);
      } else {
        ASSERT_FALSE(offsets_.count(action.group));
        const auto offset =
            allocator_.allocate(limits_.group_bytes[action.group], action.end);
        ASSERT_TRUE(offset.has_value()) << "no room for " << action.group;
        offsets_[action.group] = *offset;
      }
    }
  }

  PlanLimits limits_;
  runtime::OffsetAllocator allocator_;
  std::map<int, int64_t> offsets_;
  std::map<int, int> reductions_;
  int exposed_ = 0;
};

std::vector<PlanEvent> feed_forward(int groups) {
  std::vector<std::vector<int>> blocks;
  for (int g = 0; g < groups; ++g) {
    blocks.push_back({g});
  }
  return registration_order_events(
      blocks,
      std::vector<bool>(groups, true),
      std::vector<bool>(groups, false));
}

} // namespace

TEST(ResidencyPlan, PrefetchesEveryGroupOfAFeedForwardModel) {
  const auto events = feed_forward(4);
  const PlanLimits limits{{128, 128, 128, 128}, 256, 1};
  const auto plan = compile_plan(events, limits);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->exposed_unshards, 0);
  PlanWalker walker(limits);
  walker.walk(*plan);
  const std::map<int, int> once{{0, 1}, {1, 1}, {2, 1}, {3, 1}};
  EXPECT_EQ(walker.reductions(), once);
}

// A block with frozen and trained parameters: some operators take both.
TEST(ResidencyPlan, ExpectsTheGroupsOfABlockTogether) {
  constexpr auto kTouch = PlanEvent::Kind::kTouch;
  std::vector<PlanEvent> events;
  for (const bool in_backward : {false, true}) {
    for (int block = 0; block < 3; ++block) {
      const int frozen = in_backward ? 4 - 2 * block : 2 * block;
      const int trained = frozen + 1;
      events.push_back({kTouch, {frozen}, in_backward});
      events.push_back({kTouch, {trained}, in_backward});
      events.push_back({kTouch, {frozen, trained}, in_backward});
    }
  }
  const PlanLimits limits{{1280, 512, 1280, 512, 1280, 512}, 0, 1};
  const auto expected = registration_order_events(
      {{0, 1}, {2, 3}, {4, 5}},
      {false, true, false, true, false, true},
      std::vector<bool>(6, false));
  EXPECT_GE(
      capacity_without_exposed_unshards(expected, limits),
      capacity_without_exposed_unshards(events, limits));
}

TEST(ResidencyPlan, GathersOnceWhenEverythingFits) {
  const auto plan = compile_plan(feed_forward(3), {{64, 64, 64}, 192, 3});
  ASSERT_TRUE(plan.has_value());
  int unshards = 0;
  const auto count = [&unshards](const std::vector<PlanAction>& actions) {
    for (const PlanAction& action : actions) {
      EXPECT_NE(action.kind, ActionKind::kReshard);
      unshards += action.kind == ActionKind::kUnshard ? 1 : 0;
    }
  };
  count(plan->start);
  for (const PlanEntry& entry : plan->entries) {
    count(entry.before);
    count(entry.after);
  }
  EXPECT_EQ(unshards, 3);
}

TEST(ResidencyPlan, ReducesAtTheFirstTouchAfterTheLastArrival) {
  const std::vector<PlanEvent> events{
      {Kind::kTouch, {0}, false},
      {Kind::kTouch, {1}, false},
      {Kind::kTouch, {1}, true},
      {Kind::kArrival, {1}, true},
      {Kind::kTouch, {0}, true}, // one gradient of group 1 is still missing
      {Kind::kArrival, {1}, true},
      {Kind::kArrival, {0}, true},
      {Kind::kBackwardEnd, {}, true}};
  const auto plan = compile_plan(events, {{64, 64}, 128, 1});
  ASSERT_TRUE(plan.has_value());
  for (size_t i = 0; i + 1 < plan->entries.size(); ++i) {
    for (const PlanAction& action : plan->entries[i].after) {
      EXPECT_NE(action.kind, ActionKind::kReduce) << "entry " << i;
    }
  }
  const std::vector<PlanAction> both{
      {ActionKind::kReduce, 1}, {ActionKind::kReduce, 0}};
  EXPECT_EQ(plan->entries.back().after, both);
}

TEST(ResidencyPlan, GradientsAreFinalWhereNothingFollows) {
  const auto touch = [](int group) {
    return PlanEvent{Kind::kTouch, {group}, true};
  };
  const auto arrival = [](int group) {
    return PlanEvent{Kind::kArrival, {group}, true};
  };
  const PlanEvent end{Kind::kBackwardEnd, {}, true};
  PlanLimits limits;
  limits.group_bytes = {64, 64, 64, 64};
  limits.capacity_bytes = 4096;
  // 2 is used again where its reduction begins, 1 later on, 0 never again.
  const auto plan = compile_plan(
      {touch(1),
       arrival(1),
       touch(0),
       arrival(0),
       touch(2),
       arrival(2),
       touch(2),
       touch(1),
       touch(3),
       arrival(3),
       end},
      limits);
  ASSERT_TRUE(plan);
  const auto final = final_reductions(*plan, /*weights_too=*/true);
  ASSERT_EQ(final.size(), 4U);
  EXPECT_EQ(final[0], 2U);
  EXPECT_FALSE(final[1]);
  EXPECT_FALSE(final[2]);
  EXPECT_EQ(final[3], 6U) << "the end of backward";
  // Its gradients are final although its weights are used again.
  EXPECT_TRUE(final_reductions(*plan, /*weights_too=*/false)[2]);
  // Of several backward passes the last one counts.
  const auto twice = compile_plan(
      {touch(0), arrival(0), end, touch(0), arrival(0), end}, limits);
  EXPECT_EQ(final_reductions(*twice, /*weights_too=*/true)[0], 3U);
}

TEST(ResidencyPlan, SaysWhenAnOperatorsGroupsDoNotFitTogether) {
  const std::vector<PlanEvent> events{{Kind::kTouch, {0, 1}, false}};
  EXPECT_FALSE(compile_plan(events, {{128, 128}, 192, 1}).has_value());
  EXPECT_TRUE(compile_plan(events, {{128, 128}, 256, 1}).has_value());
}

TEST(ResidencyPlan, CountsWhatItCannotPrefetch) {
  const auto plan = compile_plan(feed_forward(3), {{128, 128, 128}, 128, 1});
  ASSERT_TRUE(plan.has_value());
  EXPECT_GT(plan->exposed_unshards, 0);
  PlanWalker walker({{128, 128, 128}, 128, 1});
  walker.walk(*plan);
}

TEST(ResidencyPlan, HoldsForRandomSteps) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const int groups = 1 + static_cast<int>(random() % 7);
    std::vector<int64_t> bytes(groups);
    for (auto& size : bytes) {
      size = static_cast<int64_t>(64 * (1 + random() % 20));
    }
    std::vector<PlanEvent> events;
    const size_t length = 1 + random() % 40;
    for (size_t i = 0; i < length; ++i) {
      const int group = static_cast<int>(random() % groups);
      if (random() % 4 == 0) {
        events.push_back({Kind::kArrival, {group}, true});
        continue;
      }
      std::set<int> touched{group};
      if (random() % 5 == 0) {
        touched.insert(static_cast<int>(random() % groups));
      }
      events.push_back(
          {Kind::kTouch, {touched.begin(), touched.end()}, random() % 2 == 0});
    }
    events.push_back({Kind::kBackwardEnd, {}, true});
    const int depth = static_cast<int>(random() % 4);
    PlanLimits limits{bytes, 0, depth};
    for (int g = 0; g < groups && round % 3 == 0; ++g) {
      limits.stays.push_back(random() % 2 == 0);
    }
    const int64_t capacity = capacity_without_exposed_unshards(events, limits);
    for (const int64_t room : {capacity, capacity / 2}) {
      limits.capacity_bytes = room;
      const auto plan = compile_plan(events, limits);
      if (!plan) {
        EXPECT_NE(room, capacity);
        continue;
      }
      PlanWalker walker(limits);
      walker.walk(*plan);
      if (HasFailure()) {
        FAIL() << "round " << round;
      }
    }
  }
}

TEST(ResidencyPlan, HashTellsStepsApart) {
  const auto events = feed_forward(3);
  auto other = events;
  EXPECT_EQ(hash_of(events), hash_of(other));
  std::swap(other[0], other[1]);
  EXPECT_NE(hash_of(events), hash_of(other));
  other = events;
  other[0].in_backward = true;
  EXPECT_NE(hash_of(events), hash_of(other));
}

} // namespace tessera::sharding::residency_plan_test
