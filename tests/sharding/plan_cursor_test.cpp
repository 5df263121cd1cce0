// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plan_cursor.h"

#include <gtest/gtest.h>

namespace tessera {

namespace {

ResidencyPlan plan_of(const std::vector<PlanEvent>& events, int groups) {
  const std::vector<int64_t> bytes(static_cast<size_t>(groups), 64);
  return *compile_plan(events, {bytes, 64 * groups, 1});
}

/// Forward over 0, 1, {2, 3}, backward in reverse.
PlanCursor cursor_over_four() {
  using Kind = PlanEvent::Kind;
  PlanCursor cursor;
  cursor.set_plan(plan_of(
      {{Kind::kTouch, {0}, false},
       {Kind::kTouch, {1}, false},
       {Kind::kTouch, {2, 3}, false},
       {Kind::kTouch, {2, 3}, true},
       {Kind::kTouch, {1}, true},
       {Kind::kTouch, {0}, true},
       {Kind::kBackwardEnd, {}, true}},
      4));
  return cursor;
}

void expect_range(
    const std::optional<PlanCursor::Range>& range,
    size_t first,
    size_t last) {
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, first);
  EXPECT_EQ(range->last, last);
}

} // namespace

TEST(PlanCursor, FollowsThePlanEntryByEntry) {
  PlanCursor cursor = cursor_over_four();
  EXPECT_TRUE(cursor.following());
  expect_range(cursor.advance_to_touch({0}, false), 0, 1);
  expect_range(cursor.advance_to_touch({1}, false), 1, 2);
  expect_range(cursor.advance_to_touch({2, 3}, false), 2, 3);
  expect_range(cursor.advance_to_touch({2, 3}, true), 3, 4);
  expect_range(cursor.advance_to_touch({1}, true), 4, 5);
  expect_range(cursor.advance_to_touch({0}, true), 5, 6);
  expect_range(cursor.advance_to_backward_end(), 6, 7);
  EXPECT_FALSE(cursor.advance_to_backward_end().has_value());
}

TEST(PlanCursor, SkippedEntriesComeWithTheOneThatIsReached) {
  PlanCursor cursor = cursor_over_four();
  expect_range(cursor.advance_to_touch({2, 3}, false), 0, 3);
  expect_range(cursor.advance_to_touch({0}, true), 3, 6);
  cursor.rewind();
  expect_range(cursor.advance_to_touch({0}, false), 0, 1);
  expect_range(cursor.advance_to_backward_end(), 1, 7);
}

TEST(PlanCursor, PartOfAnOperatorsGroupsIsCovered) {
  PlanCursor cursor = cursor_over_four();
  expect_range(cursor.advance_to_touch({3}, false), 0, 3);
}

TEST(PlanCursor, DoesNotLeaveItsPass) {
  PlanCursor cursor = cursor_over_four();
  // Forward has no such entry; backward's is not meant.
  EXPECT_FALSE(cursor.advance_to_touch({1, 2}, false).has_value());
  EXPECT_FALSE(cursor.advance_to_touch({0}, true).has_value());
  // A failed look-up has moved nothing.
  expect_range(cursor.advance_to_touch({0}, false), 0, 1);
  EXPECT_FALSE(cursor.advance_to_touch({0}, false).has_value());
}

TEST(PlanCursor, WantsAPlanWhenItHasNoneOrLeftIt) {
  PlanCursor cursor;
  EXPECT_FALSE(cursor.following());
  EXPECT_FALSE(cursor.needs_plan()); // nothing happened
  EXPECT_TRUE(cursor.at_beginning());
  cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  EXPECT_FALSE(cursor.at_beginning());
  EXPECT_TRUE(cursor.needs_plan());
  cursor.set_plan(plan_of(cursor.events(), 1));
  cursor.rewind();
  cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  EXPECT_FALSE(cursor.needs_plan());
  cursor.depart();
  EXPECT_FALSE(cursor.following());
  EXPECT_TRUE(cursor.needs_plan());
  cursor.rewind();
  EXPECT_TRUE(cursor.following());
  EXPECT_TRUE(cursor.events().empty());
}

TEST(PlanCursor, EndlessStepsHaveNoPlanAndBoundedMemory) {
  PlanCursor cursor;
  for (size_t i = 0; i < PlanCursor::kMaxEvents + 10; ++i) {
    cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  }
  EXPECT_EQ(cursor.events().size(), PlanCursor::kMaxEvents);
  EXPECT_FALSE(cursor.needs_plan());
  cursor.rewind();
  cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  EXPECT_TRUE(cursor.needs_plan());
}

} // namespace tessera
