// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/rank_agreement.h"

#include "support/ranks.h"

#include <gtest/gtest.h>

namespace tessera {

namespace {

RankAgreement make_agreement(World& world) {
  return {world, "test", [](const RankIntent&) { return "does something"; }};
}

} // namespace

TEST(RankAgreement, WaitingForARankThatLeftThePlanIsAnError) {
  testing::run_ranks(2, [](World& world) {
    auto agreement = make_agreement(world);
    if (world.rank() == 1) {
      agreement.announce_departure(7, 3, "read parameter 'a'");
    }
    agreement.control().barrier();
    if (world.rank() == 0) {
      EXPECT_NO_THROW(agreement.watch(7, 2)()); // issued before it left
      EXPECT_NO_THROW(agreement.watch(6, 3)()); // another step
      EXPECT_ANY_THROW(agreement.watch(7, 3)());
    }
  });
}

TEST(RankAgreement, RanksThatLeftThePlanTogetherGoOn) {
  testing::run_ranks(2, [](World& world) {
    auto agreement = make_agreement(world);
    agreement.announce_departure(7, 3, "read parameter 'a'");
    agreement.control().barrier();
    // What comes now was agreed on; a slow rank is only slow.
    EXPECT_NO_THROW(agreement.watch(7, 3)());
    EXPECT_NO_THROW(agreement.watch(7, 9)());
  });
}

TEST(RankAgreement, LeavingLaterThanAnotherRankIsAnError) {
  testing::run_ranks(2, [](World& world) {
    auto agreement = make_agreement(world);
    agreement.announce_departure(7, world.rank() == 0 ? 5 : 3, "read 'a'");
    agreement.control().barrier();
    if (world.rank() == 0) {
      EXPECT_ANY_THROW(agreement.watch(7, 4)()); // rank 1 never issued it
    }
  });
}

TEST(RankAgreement, AgreementsOfOneJobAreApart) {
  testing::run_ranks(2, [](World& world) {
    auto first = make_agreement(world);
    auto second = make_agreement(world);
    if (world.rank() == 1) {
      first.announce_departure(0, 0, "read parameter 'a'");
      EXPECT_ANY_THROW(first.fail("rank 1 stops"));
    }
    second.control().barrier();
    EXPECT_NO_THROW(second.watch(0, 0)());
    EXPECT_ANY_THROW(first.watch_failures()());
  });
}

} // namespace tessera
