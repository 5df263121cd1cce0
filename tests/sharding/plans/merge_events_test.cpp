// SPDX-License-Identifier: Apache-2.0
// Records of steps that differ, made into one.
#include "tessera/sharding/plans/merge_events.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::sharding::merge_events_test {

namespace {

using Kind = PlanEvent::Kind;

/// A step of these layers, each of a group of two parameters: forward,
/// backward.
std::vector<PlanEvent> step_of(const std::vector<int>& layers, int micro = 1) {
  std::vector<PlanEvent> events;
  for (int m = 0; m < micro; ++m) {
    for (const int layer : layers) {
      events.push_back({Kind::kTouch, {layer}, false});
    }
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      events.push_back({Kind::kTouch, {*layer}, true});
      events.push_back({Kind::kArrival, {*layer}, true});
      events.push_back({Kind::kArrival, {*layer}, true});
    }
    events.push_back({Kind::kBackwardEnd, {}, true});
  }
  return events;
}

} // namespace

TEST(MergeEvents, HaveTheLayersOfBoth) {
  for (const int micro : {1, 3}) {
    EXPECT_EQ(
        merge_events(step_of({0, 1, 3}, micro), step_of({0, 2, 3}, micro)),
        step_of({0, 1, 2, 3}, micro));
    EXPECT_EQ(
        merge_events(step_of({0, 2, 3, 4}, micro), step_of({0, 1, 4}, micro)),
        step_of({0, 1, 2, 3, 4}, micro));
    EXPECT_EQ(
        merge_events(step_of({0, 1, 2}, micro), step_of({0, 2}, micro)),
        step_of({0, 1, 2}, micro));
  }
}

TEST(MergeEvents, AreNotOfStepsThatHaveLittleInCommon) {
  EXPECT_FALSE(merge_events(step_of({0, 1, 2}), step_of({3, 4, 5})));
  EXPECT_FALSE(merge_events(step_of({0, 1, 2, 3}), step_of({0, 4, 5, 6})));
}

TEST(MergeEvents, AreNotOfOtherOrders) {
  EXPECT_FALSE(merge_events(step_of({0, 1, 2, 3}), step_of({0, 2, 1, 3})));
}

TEST(MergeEvents, AreNotOfOtherNumbersOfBackwards) {
  EXPECT_FALSE(merge_events(step_of({0, 1}, 2), step_of({0, 1}, 1)));
}

} // namespace tessera::sharding::merge_events_test
