// SPDX-License-Identifier: Apache-2.0
// Order between streams, on a device that keeps vector clocks in place of doing
// anything.
#include "tessera/runtime/streams/stream_lane.h"

#include "support/fake_streams.h"
#include "tessera/runtime/comm/lane_collective.h"
#include "tessera/runtime/memory/range_marks.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace tessera::runtime::stream_lane_test {

namespace {

using namespace tests;

const c10::impl::DeviceGuardImplRegistrar kRegistered(
    c10::DeviceType::PrivateUse1,
    new FakeDeviceGuard);

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    streams().reset();
  }
  static FakeStreams& streams() {
    return FakeStreams::instance();
  }
};

} // namespace

using StreamLaneTest = Streams;
using StreamMarksTest = Streams;
using RangeMarksTest = Streams;

TEST_F(StreamLaneTest, IsNothingOnTheCpu) {
  const StreamLane lane(at::kCPU);
  EXPECT_FALSE(lane.is_real());
  const StreamLane::Scope on_lane(lane);
  lane.follow_current();
  EXPECT_TRUE(lane.mark().empty());
  EXPECT_TRUE(mark_current(at::kCPU).empty());
  EXPECT_FALSE(current_stream(at::kCPU).has_value());
  lane.mark().block_current(at::kCPU);
  EXPECT_EQ(streams().events_made, 0);
}

TEST_F(StreamLaneTest, HasThePriorityThatItAsksFor) {
  const StreamLane gathers(kFakeDevice);
  const StreamLane updates(kFakeDevice, LanePriority::kLow);
  const StreamLane copies(kFakeDevice, LanePriority::kHigh);
  EXPECT_EQ(
      streams().asked_for_high_priority,
      (std::vector<bool>{true, false, true}));
}

TEST_F(StreamLaneTest, IsCurrentWithinItsScope) {
  const StreamLane lane(kFakeDevice);
  const StreamLane other(kFakeDevice);
  ASSERT_TRUE(lane.is_real());
  const auto id = [] { return current_stream(kFakeDevice)->id(); };
  EXPECT_EQ(id(), 0);
  {
    const StreamLane::Scope on_lane(lane);
    EXPECT_EQ(id(), 100);
    {
      const StreamLane::Scope on_other(other);
      EXPECT_EQ(id(), 101) << "lanes share a stream";
    }
    EXPECT_EQ(id(), 100);
  }
  EXPECT_EQ(id(), 0);
}

TEST_F(StreamLaneTest, WaitsForWhatItIsToldToAndNothingElse) {
  const StreamLane lane(kFakeDevice);
  const c10::Stream on_lane = fake_stream(100);
  const c10::Stream compute = fake_stream(0);
  const FakeWork before = streams().issue(compute);
  EXPECT_FALSE(streams().is_before(before, on_lane));
  lane.follow_current();
  EXPECT_TRUE(streams().is_before(before, on_lane));
  const FakeWork later = streams().issue(compute);
  EXPECT_FALSE(streams().is_before(later, on_lane));

  const FakeWork gather = streams().issue(on_lane);
  const StreamMarks ready = lane.mark();
  const FakeWork next_gather = streams().issue(on_lane);
  EXPECT_FALSE(streams().is_before(gather, compute));
  ready.block_current(kFakeDevice);
  EXPECT_TRUE(streams().is_before(gather, compute));
  EXPECT_FALSE(streams().is_before(next_gather, compute))
      << "compute waits for the gather after the one it needs";
}

// A collective on memory of the caller follows what made it; one that brings
// new memory starts at once.
TEST_F(StreamLaneTest, ReceivesNewMemoryAheadOfTheCurrentStream) {
  const StreamLane lane(kFakeDevice);
  const c10::Stream on_lane = fake_stream(100);
  const c10::Stream compute = fake_stream(0);
  const FakeWork before = streams().issue(compute);
  FakeWork received;
  auto incoming = LaneCollective::into_new(
      [] { return at::zeros({2}); },
      [&](const at::Tensor&) {
        received = streams().issue(*current_stream(kFakeDevice));
        return PendingCollective();
      },
      lane);
  EXPECT_EQ(received.stream, on_lane.id());
  EXPECT_FALSE(streams().is_before(before, on_lane));
  EXPECT_TRUE(streams().memory_users.contains(compute.id()))
      << "the lane may use the memory again too early";
  EXPECT_FALSE(streams().is_before(received, compute));
  incoming.wait();
  EXPECT_TRUE(streams().is_before(received, compute));

  const LaneCollective other(
      [] { return PendingCollective(); }, at::zeros({2}), lane);
  EXPECT_TRUE(streams().is_before(before, on_lane));
}

TEST_F(StreamMarksTest, EventsAreUsedAgain) {
  for (int i = 0; i < 1000; ++i) {
    streams().issue(fake_stream(1));
    StreamMarks marks;
    marks.add(fake_stream(1));
    marks.add(fake_stream(2));
    const StreamMarks copy = marks;
    copy.block(fake_stream(3));
  }
  EXPECT_LE(streams().events_made, 2);
}

TEST_F(StreamMarksTest, AnEventIsNotUsedAgainWhileItIsHeld) {
  const FakeWork first = streams().issue(fake_stream(1));
  StreamMarks held;
  held.add(fake_stream(1));
  for (int i = 0; i < 10; ++i) {
    StreamMarks other;
    other.add(fake_stream(2));
  }
  held.block(fake_stream(3));
  EXPECT_TRUE(streams().is_before(first, fake_stream(3)));
}

TEST_F(StreamMarksTest, ASetHasEachStreamOnceAndMarksAll) {
  StreamSet set;
  EXPECT_TRUE(set.insert(fake_stream(1)));
  EXPECT_TRUE(set.insert(fake_stream(2)));
  EXPECT_FALSE(set.insert(fake_stream(1)));
  EXPECT_EQ(set.streams().size(), 2);
  const FakeWork one = streams().issue(fake_stream(1));
  const FakeWork two = streams().issue(fake_stream(2));
  set.mark().block(fake_stream(3));
  EXPECT_TRUE(streams().is_before(one, fake_stream(3)));
  EXPECT_TRUE(streams().is_before(two, fake_stream(3)));
}

TEST_F(RangeMarksTest, TellsOnlyWhatOverlaps) {
  RangeMarks ranges;
  const auto leave = [&](int64_t begin, int64_t end, c10::StreamId stream) {
    const FakeWork work = streams().issue(fake_stream(stream));
    StreamMarks marks;
    marks.add(fake_stream(stream));
    ranges.leave(begin, end, marks);
    return work;
  };
  const FakeWork low = leave(0, 10, 1);
  const FakeWork high = leave(10, 20, 2);
  ranges.marks_of(10, 20).block(fake_stream(3));
  EXPECT_FALSE(streams().is_before(low, fake_stream(3)));
  EXPECT_TRUE(streams().is_before(high, fake_stream(3)));
  ranges.marks_of(9, 10).block(fake_stream(3));
  EXPECT_TRUE(streams().is_before(low, fake_stream(3)));
  EXPECT_TRUE(ranges.marks_of(20, 30).empty());
  EXPECT_TRUE(ranges.marks_of(5, 5).empty());
}

namespace {

/// Users on random streams take random ranges one after the other, and give
/// them back. @return how often a stream touched a byte that another one might
/// still have been at work on.
int count_races(bool leave_marks) {
  constexpr int64_t kBytes = 64;
  auto& streams = FakeStreams::instance();
  std::mt19937 random(7);
  RangeMarks ranges;
  std::vector<std::vector<FakeWork>> touched(kBytes); ///< by earlier users
  struct User {
    int64_t begin;
    int64_t end;
    StreamMarks after;
    StreamSet users;
    std::vector<FakeWork> work;
  };
  std::vector<User> live;
  int races = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 3 && random() % 2 == 0) {
      const auto begin = static_cast<int64_t>(random() % kBytes);
      const auto end = std::min<int64_t>(kBytes, begin + 1 + random() % 24);
      const bool is_free =
          std::none_of(live.begin(), live.end(), [&](const User& other) {
            return other.begin < end && begin < other.end;
          });
      if (is_free) {
        live.push_back({begin, end, ranges.marks_of(begin, end), {}, {}});
      }
    } else if (!live.empty() && random() % 4 != 0) {
      User& user = live[random() % live.size()];
      const c10::Stream stream =
          fake_stream(static_cast<c10::StreamId>(random() % 4));
      if (user.users.insert(stream)) {
        user.after.block(stream);
      }
      for (int64_t byte = user.begin; byte < user.end; ++byte) {
        for (const FakeWork& earlier : touched[static_cast<size_t>(byte)]) {
          races += streams.is_before(earlier, stream) ? 0 : 1;
        }
      }
      user.work.push_back(streams.issue(stream));
    } else if (!live.empty()) {
      const size_t which = random() % live.size();
      User& user = live[which];
      for (int64_t byte = user.begin; byte < user.end; ++byte) {
        auto& all = touched[static_cast<size_t>(byte)];
        all.insert(all.end(), user.work.begin(), user.work.end());
        if (all.size() > 40) {
          all.erase(all.begin(), all.end() - 40);
        }
      }
      if (leave_marks) {
        // Nobody touched it: what was there before still holds.
        StreamMarks after =
            user.users.streams().empty() ? user.after : user.users.mark();
        ranges.leave(user.begin, user.end, after);
      }
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  return races;
}

} // namespace

TEST_F(RangeMarksTest, NobodyTouchesARangeBeforeItsLastUserIsDone) {
  EXPECT_EQ(count_races(/*leave_marks=*/true), 0);
  streams().reset();
  EXPECT_GT(count_races(/*leave_marks=*/false), 1000) << "the test is blind";
}

} // namespace tessera::runtime::stream_lane_test
