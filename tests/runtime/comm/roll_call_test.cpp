// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/missing_ranks.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/comm/communicator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <thread>
#include <vector>

namespace tessera::runtime::roll_call_test {

TEST(MissingRanks, NamesTheRanksWithoutANote) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::vector<int> job_ranks{4, 5, 8};
  MissingRanks second(store, 1, job_ranks);
  MissingRanks third(store, 2, job_ranks);
  second.answer(7);
  EXPECT_EQ(second.answers(7).missing, (std::vector<int>{4, 8}));
  third.answer(7);
  EXPECT_EQ(second.answers(7).missing, (std::vector<int>{4}));
  EXPECT_TRUE(second.answers(7).is_first);
  EXPECT_FALSE(third.answers(7).is_first);
  // A note of an earlier collective says nothing of this one.
  third.answer(8);
  EXPECT_EQ(third.answers(8).missing, (std::vector<int>{4, 5}));
  EXPECT_TRUE(third.answers(8).is_first);
}

TEST(MissingRanks, RanksReadAsASentence) {
  EXPECT_EQ(ranks_text({3}), "rank 3");
  EXPECT_EQ(ranks_text({1, 2}), "ranks 1 and 2");
  EXPECT_EQ(ranks_text({1, 2, 5}), "ranks 1, 2 and 5");
}

// A collective that not all ranks join ends with an error that names them.
TEST(MissingRanks, ATimeoutNamesTheRanksThatDidNotJoin) {
  tests::RankOptions options;
  options.collective_timeout = std::chrono::milliseconds(3000);
  tests::run_ranks(
      3,
      [](World& world) {
        const auto group = world.new_communicator("all");
        group->barrier();
        if (world.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5500));
          return;
        }
        torch::Tensor value = torch::ones({1});
        if (world.rank() == 2) {
          // Its limit ends after that of rank 0, whose error ends it.
          std::this_thread::sleep_for(std::chrono::milliseconds(1000));
          EXPECT_THROW(group->all_reduce_sum(value, "the sum").wait(), Error);
          return;
        }
        expect_error(
            [&] { group->all_reduce_sum(value, "the sum").wait(); },
            {"the sum is still incomplete", "rank 1 has not joined it"});
      },
      options);
}

} // namespace tessera::runtime::roll_call_test
