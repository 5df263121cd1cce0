// SPDX-License-Identifier: Apache-2.0
// Work of rank 0 that takes longer than ranks wait for each other.
#include "tessera/engine/trainer/job_agreement.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

namespace tessera::engine::job_agreement_test {

TEST(JobAgreement, RanksWaitForWorkThatGoesOn) {
  tests::run_ranks(3, [](World& world) {
    JobAgreement agreement(world, "work");
    int calls = 0;
    agreement.by_rank_zero("working", [&](const std::function<void()>& go_on) {
      EXPECT_EQ(world.rank(), 0);
      for (; calls < 3; ++calls) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        go_on();
      }
    });
    EXPECT_EQ(calls, world.rank() == 0 ? 3 : 0);
    // Nothing is left of it.
    EXPECT_EQ(agreement.max({world.rank()}).front(), 2);
  });
}

TEST(JobAgreement, AnErrorOfRankZeroIsOneOfAll) {
  tests::run_ranks(2, [](World& world) {
    JobAgreement agreement(world, "work");
    const char* const text =
        world.rank() == 0 ? "the file is bad" : "working failed on rank 0";
    expect_error(
        [&] {
          agreement.by_rank_zero(
              "working", [](const std::function<void()>& go_on) {
                go_on();
                TESSERA_FAIL("the file is bad");
              });
        },
        {text});
  });
}

} // namespace tessera::engine::job_agreement_test
