// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/step_timing.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tessera::engine::step_timing_test {

namespace {

void sleep_ms(int count) {
  std::this_thread::sleep_for(std::chrono::milliseconds(count));
}

// A sleep is never shorter than asked for, but on a busy machine longer: only
// what must be there is checked, and that parts add up.
void expect_at_least_ms(double seconds, double ms) {
  EXPECT_GE(seconds * 1000, ms);
}

} // namespace

TEST(StepTiming, WaitsAreTakenOutOfThePhaseThatTheyAreIn) {
  TransferWaits waits;
  StepTiming timing(at::kCPU, waits);
  const auto start = std::chrono::steady_clock::now();
  timing.begin(StepPhase::kData);
  sleep_ms(5);
  timing.begin(StepPhase::kForward);
  {
    const TransferWaits::Scope wait(waits);
    sleep_ms(20);
    const TransferWaits::Scope inner(waits); // counts once
    sleep_ms(5);
  }
  timing.begin(StepPhase::kBackward);
  sleep_ms(10);
  timing.begin(StepPhase::kOptimizer);
  {
    const TransferWaits::Scope wait(waits);
    sleep_ms(15);
  }
  timing.end();
  const double passed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  {
    const TransferWaits::Scope wait(waits); // of no step
    sleep_ms(30);
  }
  const StepSplit split = timing.take();
  expect_at_least_ms(split.data, 5);
  expect_at_least_ms(split.backward, 10);
  expect_at_least_ms(split.exposed_transfer, 40);
  EXPECT_GE(split.forward, 0);
  EXPECT_GE(split.optimizer, 0);
  // Two clock readings lie between the end and the end of `passed`.
  EXPECT_LE(split.total(), passed);
  EXPECT_GE(split.total(), passed - 0.01);
}

TEST(StepTiming, TakesTheSameTimeOnce) {
  TransferWaits waits;
  StepTiming timing(at::kCPU, waits);
  timing.begin(StepPhase::kForward);
  sleep_ms(2);
  timing.end();
  expect_at_least_ms(timing.take().forward, 2);
  EXPECT_EQ(timing.take().total(), 0);
  EXPECT_EQ(StepSplit({2, 4, 6, 8, 10}).divided_by(2).total(), 15);
}

TEST(StepTiming, WithoutItWaitsAreNotNoted) {
  TransferWaits waits;
  { const TransferWaits::Scope wait(waits); }
  EXPECT_EQ(waits.count(), 0U);
  {
    const StepTiming timing(at::kCPU, waits);
    { const TransferWaits::Scope wait(waits); }
    EXPECT_EQ(waits.count(), 1U);
  }
  { const TransferWaits::Scope wait(waits); }
  EXPECT_EQ(waits.count(), 0U);
}

} // namespace tessera::engine::step_timing_test
