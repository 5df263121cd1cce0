// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/make_schedule.h"
#include "pipeline/every_schedule.h"
#include "support/expect_error.h"
#include "tessera/pipeline/schedule_transfers.h"
#include "tessera/pipeline/validate_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::pipeline::make_schedule_test {

namespace {

using Kind = PipelineScheduleKind;

/// As describe(), without transfers and reductions.
std::string computations(const PipelineSchedule& schedule) {
  PipelineSchedule rest{schedule.shape, {}};
  for (const auto& list : schedule.stages) {
    auto& kept = rest.stages.emplace_back();
    for (const PipelineInstruction& instruction : list) {
      if (instruction.op == PipelineOp::kForward ||
          is_backward(instruction.op)) {
        kept.push_back(instruction);
      }
    }
  }
  return describe(rest);
}

int published_stored(Kind kind, const PipelineShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  const int all = shape.micro_batches * shape.chunks;
  switch (kind) {
    case Kind::kGPipe:
      return all;
    case Kind::kZeroBubble:
      return std::min(all, shape.stages);
    default:
      return shape.chunks == 1
                 ? std::min(all, behind + 1)
                 : std::min(
                       all, 2 * behind + (shape.chunks - 1) * shape.stages + 1);
  }
}

} // namespace

TEST(MakeSchedule, EveryShapeIsValidAndStoresWhatIsPublished) {
  int count = 0;
  for_every_schedule([&](Kind kind, const PipelineShape& shape) {
    const ScheduleFacts facts = validate_schedule(make_schedule(kind, shape));
    for (int stage = 0; stage < shape.stages; ++stage) {
      EXPECT_EQ(
          facts.peak_stored[static_cast<std::size_t>(stage)],
          published_stored(kind, shape, stage))
          << "stage " << stage;
    }
    ++count;
  });
  EXPECT_GT(count, 500);
}

TEST(MakeSchedule, ForwardsAloneAreValidInEveryShape) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int batches = 1; batches <= 9; ++batches) {
      for (int chunks = 1; chunks <= 3; ++chunks) {
        const ScheduleFacts facts =
            validate_schedule(make_forward_schedule({stages, batches, chunks}));
        EXPECT_EQ(
            facts.peak_stored,
            std::vector<int>(static_cast<std::size_t>(stages), 0));
      }
    }
  }
  EXPECT_EQ(
      describe(make_forward_schedule({2, 2})),
      "stage 0: F0 s0 F1 s1\n"
      "stage 1: r0 F0 r1 F1\n");
  PipelineSchedule schedule = make_forward_schedule({1, 1});
  schedule.stages[0].push_back({PipelineOp::kBackward});
  expect_error([&] { validate_schedule(schedule); }, {"forwards only"});
}

TEST(MakeSchedule, GPipeRunsAllForwardsFirst) {
  EXPECT_EQ(
      describe(make_schedule(Kind::kGPipe, {2, 2})),
      "stage 0: F0 s0 F1 s1 R0 B0 R1 B1 +\n"
      "stage 1: r0 F0 r1 F1 B0 S0 B1 + S1\n");
}

// The figures of arXiv:2104.04473 and arXiv:2401.10241 show these lists.
TEST(MakeSchedule, OneForwardOneBackwardAsPublished) {
  EXPECT_EQ(
      computations(make_schedule(Kind::kOneForwardOneBackward, {4, 8})),
      "stage 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7\n"
      "stage 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
      "stage 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
      "stage 3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7\n");
}

TEST(MakeSchedule, InterleavedAsPublished) {
  EXPECT_EQ(
      computations(make_schedule(Kind::kInterleaved, {2, 4, 2})),
      "stage 0: F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 "
      "B3\n"
      "stage 1: F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 "
      "B3\n");
}

TEST(MakeSchedule, ZeroBubbleDelaysWeightsOfLateStages) {
  EXPECT_EQ(
      computations(make_schedule(Kind::kZeroBubble, {4, 5})),
      "stage 0: F0 F1 F2 F3 I0 W0 F4 I1 W1 I2 W2 I3 W3 I4 W4\n"
      "stage 1: F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 I3 W2 I4 W3 W4\n"
      "stage 2: F0 F1 I0 F2 I1 F3 I2 W0 F4 I3 W1 I4 W2 W3 W4\n"
      "stage 3: F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 W2 W3 W4\n");
}

TEST(MakeSchedule, OneStageNeedsNoTransfers) {
  EXPECT_EQ(
      describe(make_schedule(Kind::kInterleaved, {1, 2, 2})),
      "stage 0: F0 F0.1 B0.1 F1 B0 F1.1 B1.1 +.1 B1 +\n");
}

TEST(MakeSchedule, OddShapesAreRefused) {
  expect_error(
      [] {
        make_schedule(Kind::kGPipe, {0, 1});
      },
      {"stages", "got 0"});
  expect_error(
      [] {
        make_schedule(Kind::kGPipe, {1, -1});
      },
      {"micro-batches", "got -1"});
  expect_error(
      [] {
        make_schedule(Kind::kInterleaved, {2, 2, 0});
      },
      {"chunks", "got 0"});
  expect_error(
      [] {
        make_schedule(Kind::kZeroBubble, {2, 2, 2});
      },
      {"zb-h1", "one chunk", "interleaved"});
  expect_error(
      [] {
        make_schedule(Kind::kInterleaved, {4, 6, 2});
      },
      {"6 micro-batches", "use 4 or 8"});
  expect_error(
      [] {
        make_schedule(Kind::kInterleaved, {4, 3, 2});
      },
      {"use 4, or the schedule 1f1b"});
}

TEST(WithTransfers, NamesWhatNeverStarts) {
  PipelineSchedule circle{{2, 1, 1}, {}};
  circle.stages = {
      {{PipelineOp::kBackward}, {PipelineOp::kForward}},
      {{PipelineOp::kForward}, {PipelineOp::kBackward}}};
  expect_error(
      [&] { with_transfers(circle); },
      {"backward of micro-batch 0 on chunk 0 of pipeline stage 0",
       "never starts"});
}

} // namespace tessera::pipeline::make_schedule_test
