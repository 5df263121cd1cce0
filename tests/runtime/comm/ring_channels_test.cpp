// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/ring_channels.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace tessera::runtime::ring_channels_test {

namespace {

at::Tensor number(double value, at::ScalarType dtype = at::kDouble) {
  return at::full({3, 2}, value, dtype);
}

} // namespace

// Everybody sends to both neighbours before anybody receives.
TEST(RingChannels, NeighboursTalkInBothDirections) {
  for (const char* transport : {"shm", "gloo"}) {
    ::setenv("TESSERA_TRANSPORT", transport, 1);
    for (const int ranks : {2, 3, 4}) {
      tests::run_ranks(ranks, [ranks](World& world) {
        // A ring that does not follow the ranks' numbers.
        std::vector<int> ring;
        for (int r = ranks; r-- > 0;) {
          ring.push_back(r);
        }
        RingChannels channels(world, "ring", ring, at::kCPU);
        const int local = channels.index();
        EXPECT_EQ(local, ranks - 1 - world.rank());
        const int next = (local + 1) % ranks;
        const int before = (local + ranks - 1) % ranks;
        std::vector<LaneCollective> pending;
        for (int i = 0; i < 5; ++i) {
          for (const int to : {next, before}) {
            pending.push_back(
                channels.send(number(100 * local + 10 * to + i), to, "a send"));
          }
        }
        for (int i = 0; i < 5; ++i) {
          for (const int from : {before, next}) {
            // Of two ranks each gets both of a pair from the same one.
            const at::Tensor got = number(-1);
            channels.receive(got, from, "a receive").wait();
            EXPECT_TRUE(got.equal(number(100 * from + 10 * local + i)));
          }
        }
        for (auto& one : pending) {
          one.wait();
        }
      });
    }
  }
  ::unsetenv("TESSERA_TRANSPORT");
}

TEST(RingChannels, CarriesAnyType) {
  tests::run_ranks(2, [](World& world) {
    RingChannels channels(world, "ring", {0, 1}, at::kCPU);
    for (const auto dtype : {at::kBool, at::kBFloat16, at::kInt, at::kLong}) {
      if (world.rank() == 0) {
        channels.send(number(1, dtype), 1, "a send").wait();
      } else {
        const at::Tensor got = at::zeros({3, 2}, dtype);
        channels.receive(got, 0, "a receive").wait();
        EXPECT_TRUE(got.equal(number(1, dtype)));
      }
    }
  });
}

TEST(RingChannels, OnlyNeighboursHaveOne) {
  tests::run_ranks(4, [](World& world) {
    RingChannels channels(world, "ring", {0, 1, 2, 3}, at::kCPU);
    const int opposite = (world.rank() + 2) % 4;
    expect_error(
        [&] { channels.send(number(1), opposite, "my send"); },
        {"my send", "no channel", "only neighbors"});
    const int next = (world.rank() + 1) % 4;
    expect_error(
        [&] { channels.send(number(1).t(), next, "my send"); },
        {"my send", "contiguous"});
  });
}

// Several rings of one job, as of several data-parallel copies.
TEST(RingChannels, RingsAreApart) {
  tests::run_ranks(4, [](World& world) {
    const int first = world.rank() % 2;
    RingChannels channels(world, "ring", {first, first + 2}, at::kCPU);
    if (channels.index() == 0) {
      channels.send(number(first), 1, "a send").wait();
    } else {
      const at::Tensor got = number(-1);
      channels.receive(got, 0, "a receive").wait();
      EXPECT_TRUE(got.equal(number(first)));
    }
  });
}

TEST(RingChannels, ALostNeighbourIsAnError) {
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    RingChannels channels(world, "ring", {0, 1}, at::kCPU);
    TESSERA_CHECK(world.rank() == 0, "this rank leaves");
    const at::Tensor got = number(-1);
    channels.receive(got, 1, "the receive that never comes").wait();
  });
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(
      results[0].output.find("the receive that never comes"), std::string::npos)
      << results[0].output;
}

} // namespace tessera::runtime::ring_channels_test
