// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/simulate_schedule.h"
#include "pipeline/every_schedule.h"
#include "support/expect_error.h"
#include "tessera/pipeline/make_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera::pipeline::simulate_schedule_test {

namespace {

using Kind = PipelineScheduleKind;

// Sums of a few hundred doubles.
constexpr double kRounding = 1e-12;

/// @param cost of a whole stage; its chunks share it evenly.
SimulatedPipeline simulate(
    Kind kind,
    const PipelineShape& shape,
    const ModelChunkCost& cost) {
  const double chunks = shape.chunks;
  const ModelChunkCost part{
      cost.forward / chunks,
      cost.backward_input / chunks,
      cost.backward_weight / chunks,
      cost.transfer};
  return simulate_schedule(
      make_schedule(kind, shape),
      std::vector<ModelChunkCost>(
          static_cast<std::size_t>(shape.model_chunks()), part));
}

} // namespace

// The bubble is (p-1)/v of the time that a micro-batch takes, whatever forward
// and backward take.
TEST(SimulateSchedule, BubblesAreThoseOfThePublishedFormulas) {
  for (const ModelChunkCost& cost :
       {ModelChunkCost{1, 1, 1}, ModelChunkCost{3, 2, 0.5}}) {
    for_every_schedule([&](Kind kind, const PipelineShape& shape) {
      if (kind == Kind::kZeroBubble) {
        return;
      }
      const auto result = simulate(kind, shape, cost);
      const double p = shape.stages;
      const double m = shape.micro_batches;
      const double v = shape.chunks;
      EXPECT_NEAR(result.bubble_fraction, (p - 1) / (v * m + p - 1), kRounding);
      const double one =
          cost.forward + cost.backward_input + cost.backward_weight;
      EXPECT_NEAR(result.makespan, (m + (p - 1) / v) * one, kRounding * 1000);
    });
  }
}

TEST(SimulateSchedule, ZeroBubbleIsAThirdOfOneForwardOneBackward) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 16; ++m) {
      SCOPED_TRACE(::testing::Message() << "stages " << p << ", batches " << m);
      const PipelineShape shape{p, m, 1};
      const ModelChunkCost cost{1, 1, 1};
      const auto zero = simulate(Kind::kZeroBubble, shape, cost);
      const auto plain = simulate(Kind::kOneForwardOneBackward, shape, cost);
      if (m >= p) {
        // (p-1)(F + I - W) beside m(F + I + W) of work.
        EXPECT_NEAR(zero.makespan, 3 * m + p - 1, kRounding * 1000);
      }
      if (p > 1) {
        EXPECT_LT(zero.bubble_fraction, plain.bubble_fraction);
      } else {
        EXPECT_NEAR(zero.bubble_fraction, 0, kRounding);
      }
    }
  }
}

TEST(SimulateSchedule, ZeroBubbleIsBelowOneForwardOneBackwardForOtherTimes) {
  for (const ModelChunkCost& cost :
       {ModelChunkCost{1, 1.2, 0.8},
        ModelChunkCost{2, 2.2, 1.6},
        ModelChunkCost{1, 2, 1}}) {
    for (int p = 2; p <= 8; ++p) {
      for (int m = 1; m <= 16; ++m) {
        EXPECT_LT(
            simulate(Kind::kZeroBubble, {p, m}, cost).makespan,
            simulate(Kind::kOneForwardOneBackward, {p, m}, cost).makespan)
            << "stages " << p << ", batches " << m;
      }
    }
  }
}

// A chain of one micro-batch: every piece and both transfers of every border.
TEST(SimulateSchedule, TransfersCostTheirTime) {
  std::vector<ModelChunkCost> costs{
      {1, 2, 3, 0.5}, {10, 20, 30, 0.25}, {7, 8, 9}};
  const auto result = simulate_schedule(
      make_schedule(Kind::kOneForwardOneBackward, {3, 1}), costs);
  EXPECT_NEAR(result.makespan, 6 + 60 + 24 + 2 * 0.75, kRounding * 1000);
  EXPECT_NEAR(result.busy[1], 60, kRounding * 1000);
  EXPECT_NEAR(result.bubble_fraction, 1 - 90 / (3 * 91.5), kRounding);
}

// The slowest stage is never idle once it has begun, save for the fill and the
// drain of the others.
TEST(SimulateSchedule, TheSlowestStageSetsThePace) {
  std::vector<ModelChunkCost> costs{{1, 1, 0}, {5, 5, 0}, {1, 1, 0}};
  const auto result = simulate_schedule(
      make_schedule(Kind::kOneForwardOneBackward, {3, 12}), costs);
  EXPECT_NEAR(result.busy[1], 120, kRounding * 1000);
  EXPECT_GE(result.makespan, 120 + 2);
  EXPECT_LE(result.makespan, 120 + 2 * 4 + 2);
}

TEST(SimulateSchedule, TransfersHideBehindComputation) {
  const PipelineShape shape{4, 16};
  const auto free = simulate(Kind::kOneForwardOneBackward, shape, {1, 1, 1, 0});
  const auto slow =
      simulate(Kind::kOneForwardOneBackward, shape, {1, 1, 1, 0.1});
  EXPECT_GE(slow.makespan, free.makespan + 2 * 3 * 0.1 - kRounding);
  // 1F1B has no slack between neighbours: a round trip between two stages is
  // paid for each micro-batch at most.
  EXPECT_LE(slow.makespan, free.makespan + 2 * (3 + 16) * 0.1);
}

TEST(SimulateSchedule, WrongCostsAreRefused) {
  const auto schedule = make_schedule(Kind::kGPipe, {2, 2});
  expect_error(
      [&] {
        simulate_schedule(schedule, {{1, 1, 1}});
      },
      {"1 costs", "2 pieces"});
  expect_error(
      [&] {
        simulate_schedule(schedule, {{1, 1, 1}, {1, -1, 1}});
      },
      {"piece 1"});
  expect_error(
      [&] {
        simulate_schedule(
            schedule, {{std::numeric_limits<double>::quiet_NaN(), 1, 1}, {}});
      },
      {"piece 0"});
}

} // namespace tessera::pipeline::simulate_schedule_test
