// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/rank_agreement.h"

#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera {

namespace {

using Kind = RankIntent::Kind;

std::string describe(const RankIntent& intent) {
  return "does " + std::to_string(static_cast<int>(intent.kind)) +
      " with group " + std::to_string(intent.group);
}

} // namespace

class RankAgreementTest : public ::testing::TestWithParam<int> {};

TEST_P(RankAgreementTest, EqualIntentsAgree) {
  testing::run_ranks(GetParam(), [](World& world) {
    RankAgreement agreement(world, "test", describe);
    for (int group = 0; group < 5; ++group) {
      // Which parameter of the group was read does not matter.
      EXPECT_FALSE(agreement.agree({Kind::kUnshard, group, world.rank()}));
    }
    EXPECT_FALSE(agreement.agree({Kind::kStep, -1, -1}));
  });
}

TEST_P(RankAgreementTest, AReductionComesFirst) {
  testing::run_ranks(GetParam(), [](World& world) {
    if (world.size() == 1) {
      return; // it alone is always of one mind
    }
    RankAgreement agreement(world, "test", describe);
    const RankIntent intent = world.rank() == 0
        ? RankIntent{Kind::kBackwardEnd, -1, -1}
        : RankIntent{Kind::kReduce, 7 - world.rank(), -1};
    // The lowest of the groups that are complete somewhere.
    EXPECT_EQ(agreement.agree(intent), 7 - (world.size() - 1));
    EXPECT_FALSE(agreement.agree({Kind::kBackwardEnd, -1, -1}));
  });
}

TEST_P(RankAgreementTest, DisagreementNamesEveryRank) {
  testing::run_ranks(GetParam(), [](World& world) {
    RankAgreement agreement(world, "test", describe);
    if (world.size() == 1) {
      return;
    }
    std::vector<std::string> parts{"different paths", "control flow"};
    for (int r = 0; r < world.size(); ++r) {
      parts.push_back(
          "rank " + std::to_string(r) + ": does 0 with group " +
          std::to_string(r));
    }
    try {
      agreement.agree({Kind::kUnshard, world.rank(), 0});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      for (const auto& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << error.what();
      }
    }
  });
}

TEST_P(RankAgreementTest, WhoWaitsForTheOtherEndsWithAnErrorOnBothSides) {
  testing::run_ranks(GetParam(), [](World& world) {
    RankAgreement agreement(world, "test", describe);
    if (world.size() == 1) {
      EXPECT_FALSE(agreement.watch(0, [] { return ""; }));
      return;
    }
    const std::initializer_list<const char*> parts{
        "rank 0: does 5 with group -1", "rank 1: waits for its data"};
    if (world.rank() == 1) {
      agreement.count_collective();
      const auto check =
          agreement.watch(0, [] { return "waits for its data"; });
      expect_error(
          [&] {
            for (int i = 0; i < 2000; ++i) {
              check();
              std::this_thread::sleep_for(std::chrono::milliseconds(10));
            }
          },
          parts);
    } else if (world.rank() == 0) {
      expect_error([&] { agreement.agree({Kind::kClip, -1, -1}); }, parts);
    } else {
      EXPECT_THROW(agreement.agree({Kind::kClip, -1, -1}), Error);
    }
  });
}

TEST_P(RankAgreementTest, NotesOfOldAgreementsAndEarlierCollectivesAreIgnored) {
  testing::run_ranks(GetParam(), [](World& world) {
    RankAgreement agreement(world, "test", describe);
    if (world.size() == 1) {
      return;
    }
    for (int round = 0; round < 2; ++round) {
      const uint64_t sequence = agreement.count_collective();
      if (world.rank() == 1) {
        // The others have issued this one before they began to wait.
        const auto check = agreement.watch(sequence, [] { return "waits"; });
        for (int i = 0; i < 80; ++i) {
          check();
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      }
      agreement.agree({Kind::kStep, -1, -1});
      // Their notes are still there.
      agreement.watch(agreement.count_collective(), [] { return "waits"; })();
    }
  });
}

TEST_P(RankAgreementTest, FailureOfOneIsSeenByAllButNotByTheNextEngine) {
  testing::run_ranks(GetParam(), [](World& world) {
    {
      RankAgreement agreement(world, "test", describe);
      if (world.size() == 1) {
        return;
      }
      if (world.rank() == 1) {
        expect_error([&] { agreement.fail("out of luck"); }, {"out of luck"});
      }
      agreement.control().barrier();
      expect_error([&] { agreement.watch_failures()(); }, {"out of luck"});
    }
    RankAgreement next(world, "test", describe);
    next.watch_failures()();
    EXPECT_FALSE(next.agree({Kind::kStep, -1, -1}));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, RankAgreementTest, ::testing::Range(1, 4));

} // namespace tessera
