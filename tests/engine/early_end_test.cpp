// SPDX-License-Identifier: Apache-2.0
// Ranks that run fewer steps than others, the commonest mistake.
#include "support/expect_error.h"
#include "support/forked_ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/init.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>

namespace tessera::tests::early_end_test {

namespace {

/// Trains on rank `rank` of `ranks` for 2 steps and on the others for 3.
LaunchedJob::Result train_unevenly(int ranks, int early) {
  return run_as_ranks(ranks, [&] {
    World& world = init({.timeout = std::chrono::minutes(5)});
    const auto train = [&] {
      torch::nn::Sequential net(
          torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
      Engine engine = wrap(net.ptr(), {});
      const int steps = world.rank() == early ? 2 : 3;
      for (int step = 0; step < steps; ++step) {
        engine.backward(net->forward(torch::ones({2, 8})).sum());
        engine.step();
      }
    };
    if (world.rank() == early) {
      train();
      std::exit(0); // as at the end of main()
    }
    const std::string text = "rank " + std::to_string(early) + " ended early";
    expect_error(
        train,
        {text.c_str(),
         "after 2 steps, with exit code 0; all ranks must run the same number "
         "of steps"});
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
}

} // namespace

TEST(EarlyEnd, IsNamedWithTheNumberOfSteps) {
  for (const int ranks : {2, 3}) {
    const auto job = train_unevenly(ranks, /*early=*/1);
    EXPECT_EQ(job.exit_code, 0) << job.output;
    EXPECT_LT(job.seconds, 60);
  }
}

} // namespace tessera::tests::early_end_test
