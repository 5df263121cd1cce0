// SPDX-License-Identifier: Apache-2.0
#include "support/expect_error.h"
#include "support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace tessera::runtime::communicator_test {

class CommunicatorTest : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorTest, GathersAndReducesOverAllRanks) {
  tests::run_ranks(GetParam(), [](World& world) {
    const auto comm = world.new_communicator("test");
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto self_value = at::full({3}, world.rank() + 1.0, dtype);
      const auto all = at::empty({3 * world.size()}, dtype);
      comm->all_gather(all, self_value, "gather").wait();
      for (int r = 0; r < world.size(); ++r) {
        EXPECT_EQ(all[3 * r].item<float>(), r + 1.0);
      }
      const auto sum = at::empty({3}, dtype);
      comm->reduce_scatter_sum(sum, all, "reduce").wait();
      EXPECT_EQ(sum[0].item<float>(), (world.rank() + 1.0) * world.size());
      // Into the rank's own part of the input.
      const auto input = at::ones({3 * world.size()}, dtype);
      const auto part = input.narrow(0, 3 * world.rank(), 3);
      comm->reduce_scatter_sum(part, input, "reduce in place").wait();
      EXPECT_TRUE(at::equal(part, at::full({3}, world.size(), dtype)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorTest, ::testing::Range(1, 5));

TEST(Communicator, SaysWhatFailedWhenAPeerIsGone) {
  const auto results = tests::run_ranks_expecting(2, [](World& world) {
    const auto comm = world.new_communicator("test");
    comm->barrier(); // connected
    if (world.rank() == 1) {
      // Not before the other rank has seen the barrier's end.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      ::_exit(0);
    }
    const auto out = at::empty({2});
    comm->all_gather(out, at::ones({1}), "unshard of 'layer.0'").wait();
  });
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(
      results[0].output.find("unshard of 'layer.0' failed"), std::string::npos)
      << results[0].output;
}

TEST(Communicator, ReductionEndsWhenAPeerIsGone) {
  tests::RankOptions options;
  options.collective_timeout = std::chrono::seconds(50);
  const auto start = std::chrono::steady_clock::now();
  const auto results = tests::run_ranks_expecting(
      2,
      [](World& world) {
        const auto comm = world.new_communicator("test");
        comm->barrier(); // connected
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(1));
          ::_exit(0);
        }
        const auto out = at::empty({1});
        comm->reduce_scatter_sum(out, at::ones({2}), "reduction").wait();
      },
      options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_EQ(results[0].exit_code, 3);
  EXPECT_NE(results[0].output.find("reduction failed"), std::string::npos)
      << results[0].output;
}

TEST(Communicator, ChecksAndDestructionDoNotWaitForAPeerThatNeverComes) {
  tests::RankOptions options;
  options.collective_timeout = std::chrono::seconds(50);
  tests::run_ranks(
      2,
      [](World& world) {
        const auto start = std::chrono::steady_clock::now();
        auto self_value = world.new_communicator("mine");
        if (world.rank() == 0) {
          const auto out = at::empty({1});
          const auto refuse = [] { throw Error("seen enough"); };
          expect_error(
              [&] {
                self_value->reduce_scatter_sum(out, at::ones({2}), "lonely")
                    .wait(refuse);
              },
              {"seen enough"});
          self_value.reset();
        }
        EXPECT_LT(
            std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
        // The other rank stays until then.
        world.new_communicator("end")->barrier();
      },
      options);
}

} // namespace tessera::runtime::communicator_test
