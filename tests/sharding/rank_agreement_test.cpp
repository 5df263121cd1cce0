// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/rank_agreement.h"

#include "support/ranks.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace tessera::sharding::rank_agreement_test {

namespace {

constexpr RankIntent kUnwrap{RankIntent::Kind::kUnwrap, -1, -1};

/// Longer than a rank waits before it notes what it waits for.
constexpr std::chrono::milliseconds kLong{1500};

RankAgreement make_agreement(World& world) {
  return {world, "test", {0, 1}, [](const RankIntent& intent) -> std::string {
            return intent.kind == RankIntent::Kind::kUnwrap ? "unwraps"
                                                            : "does more";
          }};
}

std::string gathers() {
  return "gathers";
}

} // namespace

TEST(RankAgreement, WaitingForARankThatAsksForAnAgreementIsAnError) {
  tests::run_ranks(2, [](World& world) {
    auto agreement = make_agreement(world);
    const auto issued = agreement.count_collective();
    if (world.rank() == 1) {
      EXPECT_ANY_THROW(agreement.agree(kUnwrap)); // rank 0 ends it
      return;
    }
    const auto next = agreement.count_collective();
    std::this_thread::sleep_for(kLong);
    // Rank 1 has issued this one before it asked.
    EXPECT_NO_THROW(agreement.watch(issued, gathers)());
    try {
      const WaitCheck check = agreement.watch(next, gathers);
      EXPECT_NO_THROW(check()) << "the others have a round to say why";
      check();
      ADD_FAILURE() << "rank 1 will never issue it";
    } catch (const std::exception& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("rank 0: gathers"), std::string::npos) << message;
      EXPECT_NE(message.find("rank 1: unwraps"), std::string::npos) << message;
    }
  });
}

TEST(RankAgreement, AnAgreementThatCameAboutLateIsForgotten) {
  tests::run_ranks(2, [](World& world) {
    auto agreement = make_agreement(world);
    if (world.rank() == 0) {
      std::this_thread::sleep_for(kLong);
    }
    EXPECT_EQ(agreement.agree(kUnwrap).reduction, std::nullopt);
    // What comes now was agreed on; a slow rank is only slow.
    EXPECT_NO_THROW(agreement.watch(agreement.count_collective(), gathers)());
  });
}

TEST(RankAgreement, AgreementsOfOneJobAreApart) {
  tests::run_ranks(2, [](World& world) {
    auto first = make_agreement(world);
    auto second = make_agreement(world);
    if (world.rank() == 1) {
      EXPECT_ANY_THROW(first.fail("rank 1 stops"));
    }
    second.control().barrier();
    EXPECT_NO_THROW(second.watch_failures()());
    EXPECT_NO_THROW(second.watch(0, gathers)());
    EXPECT_ANY_THROW(first.watch_failures()());
  });
}

} // namespace tessera::sharding::rank_agreement_test
