// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/plans/plan_cursor.h"

#include <gtest/gtest.h>

namespace tessera::sharding::plan_cursor_test {

namespace {

PlanCursor cursor_over(const std::vector<PlanEvent>& events) {
  PlanCursor cursor;
  cursor.set_plan(compile_plan(events, {{64, 64, 64}, 192, 1}));
  return cursor;
}

std::vector<PlanEvent> three_groups() {
  return registration_order_events(
      {{0}, {1}, {2}}, {true, true, true}, {false, false, false});
}

} // namespace

TEST(PlanCursor, FollowsTouchesInOrder) {
  PlanCursor cursor = cursor_over(three_groups());
  for (const int group : {0, 1, 2}) {
    const auto range = cursor.advance_to_touch({group}, false);
    ASSERT_TRUE(range.has_value());
    EXPECT_EQ(range->last - range->first, 1);
  }
  EXPECT_TRUE(cursor.advance_to_touch({2}, true).has_value());
}

TEST(PlanCursor, RunsWhatWasSkipped) {
  PlanCursor cursor = cursor_over(three_groups());
  const auto range = cursor.advance_to_touch({2}, false);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->first, 0);
  EXPECT_EQ(range->last, 3);
}

TEST(PlanCursor, DoesNotSkipFromForwardIntoBackward) {
  PlanCursor cursor = cursor_over(three_groups());
  ASSERT_TRUE(cursor.advance_to_touch({2}, false).has_value());
  EXPECT_FALSE(cursor.advance_to_touch({0}, false).has_value());
}

TEST(PlanCursor, AdvancesToTheEndOfBackward) {
  PlanCursor cursor = cursor_over(three_groups());
  const auto range = cursor.advance_to_backward_end();
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->last, 7);
  EXPECT_FALSE(cursor.advance_to_backward_end().has_value());
}

TEST(PlanCursor, WantsAPlanOnlyWhenItHasNoneOrLeftIt) {
  PlanCursor cursor;
  EXPECT_FALSE(cursor.needs_plan()); // nothing happened
  cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  EXPECT_TRUE(cursor.needs_plan());
  cursor.rewind();
  cursor.set_plan(compile_plan(three_groups(), {{64, 64, 64}, 192, 1}));
  cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  EXPECT_FALSE(cursor.needs_plan());
  cursor.depart();
  EXPECT_TRUE(cursor.needs_plan());
  EXPECT_FALSE(cursor.following());
  cursor.rewind();
  EXPECT_TRUE(cursor.following());
}

TEST(PlanCursor, GivesUpOnAPhaseWithoutEnd) {
  PlanCursor cursor;
  for (size_t i = 0; i <= PlanCursor::kMaxEvents; ++i) {
    cursor.record({PlanEvent::Kind::kTouch, {0}, false});
  }
  EXPECT_EQ(cursor.events().size(), PlanCursor::kMaxEvents);
  EXPECT_FALSE(cursor.needs_plan());
}

} // namespace tessera::sharding::plan_cursor_test
