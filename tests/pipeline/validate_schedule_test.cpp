// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/validate_schedule.h"
#include "pipeline/every_schedule.h"
#include "support/expect_error.h"
#include "tessera/pipeline/make_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace tessera::pipeline::validate_schedule_test {

namespace {

using Op = PipelineOp;
using Kind = PipelineScheduleKind;

/// stage 0: F0 s0 F1 R0 s1 B0 R1 B1 +
/// stage 1: r0 F0 B0 S0 r1 F1 B1 + S1
PipelineSchedule small() {
  return make_schedule(Kind::kOneForwardOneBackward, {2, 2});
}

std::size_t find(
    const PipelineSchedule& schedule,
    std::size_t stage,
    Op op,
    int micro_batch) {
  const auto& list = schedule.stages[stage];
  const auto found =
      std::find(list.begin(), list.end(), PipelineInstruction{op, micro_batch});
  EXPECT_NE(found, list.end());
  return static_cast<std::size_t>(found - list.begin());
}

void erase(PipelineSchedule& schedule, std::size_t stage, Op op, int batch) {
  auto& list = schedule.stages[stage];
  list.erase(
      list.begin() +
      static_cast<std::ptrdiff_t>(find(schedule, stage, op, batch)));
}

} // namespace

TEST(ValidateSchedule, FindsWhatIsMissing) {
  PipelineSchedule schedule = small();
  erase(schedule, 1, Op::kSendGradient, 1);
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 1 has no send of the gradient of micro-batch 1 on chunk 0"});
  schedule = small();
  erase(schedule, 0, Op::kReduceGradients, 0);
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 0 has no reduction of gradients on chunk 0"});
}

TEST(ValidateSchedule, FindsAForwardBeforeItsInput) {
  PipelineSchedule schedule = small();
  auto& list = schedule.stages[1];
  std::swap(list[0], list[1]);
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 1, instruction 0",
       "forward of micro-batch 0 on chunk 0",
       "its input is not there yet"});
}

TEST(ValidateSchedule, FindsABackwardBeforeItsGradient) {
  PipelineSchedule schedule = small();
  auto& list = schedule.stages[0];
  std::swap(
      list[find(schedule, 0, Op::kReceiveGradient, 0)],
      list[find(schedule, 0, Op::kBackward, 0)]);
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 0", "its gradient is not there yet"});
}

TEST(ValidateSchedule, FindsWorkDoneTwice) {
  PipelineSchedule schedule = small();
  schedule.stages[0].push_back({Op::kForward, 1, 0});
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 0", "forward of micro-batch 1", "already done"});
  schedule = small();
  schedule.stages[0].push_back({Op::kBackwardInput, 1, 0});
  expect_error([&] { validate_schedule(schedule); }, {"was already computed"});
}

TEST(ValidateSchedule, FindsAReductionBeforeTheLastGradient) {
  PipelineSchedule schedule = small();
  auto& list = schedule.stages[0];
  std::swap(list[list.size() - 1], list[list.size() - 2]);
  expect_error(
      [&] { validate_schedule(schedule); }, {"a gradient is still missing"});
}

TEST(ValidateSchedule, FindsInstructionsThatMeanNothing) {
  PipelineSchedule schedule = small();
  schedule.stages[1].push_back({Op::kForward, 2, 0});
  expect_error(
      [&] { validate_schedule(schedule); },
      {"stage 1", "no such micro-batch or chunk"});
  schedule = small();
  schedule.stages[0].insert(
      schedule.stages[0].begin(), {Op::kReceiveActivation, 0, 0});
  expect_error(
      [&] { validate_schedule(schedule); }, {"stage 0", "no other end"});
  schedule = small();
  schedule.stages.pop_back();
  expect_error(
      [&] { validate_schedule(schedule); },
      {"1 lists of instructions for 2 stages"});
}

TEST(ValidateSchedule, FindsTransfersInAnotherOrder) {
  PipelineSchedule schedule = make_schedule(Kind::kGPipe, {2, 2});
  auto& list = schedule.stages[1];
  // Both activations first, the second of them before the first.
  list.erase(
      std::remove_if(
          list.begin(),
          list.end(),
          [](const auto& i) { return i.op == Op::kReceiveActivation; }),
      list.end());
  list.insert(
      list.begin(),
      {{Op::kReceiveActivation, 1, 0}, {Op::kReceiveActivation, 0, 0}});
  expect_error(
      [&] { validate_schedule(schedule); },
      {"transfer 0 from stage 0 to stage 1",
       "send of the activation of micro-batch 0",
       "receive of the activation of micro-batch 1"});
}

// Stage 0 wants the first gradient before it sends the second activation, and
// stage 1 returns it only after that activation.
TEST(ValidateSchedule, FindsADeadlock) {
  PipelineSchedule schedule{{2, 2, 1}, {}};
  schedule.stages = {
      {{Op::kForward, 0},
       {Op::kSendActivation, 0},
       {Op::kForward, 1},
       {Op::kSendActivation, 1},
       {Op::kReceiveGradient, 0},
       {Op::kBackward, 0},
       {Op::kReceiveGradient, 1},
       {Op::kBackward, 1},
       {Op::kReduceGradients}},
      {{Op::kReceiveActivation, 0},
       {Op::kForward, 0},
       {Op::kBackward, 0},
       {Op::kReceiveActivation, 1},
       {Op::kForward, 1},
       {Op::kSendGradient, 0},
       {Op::kBackward, 1},
       {Op::kSendGradient, 1},
       {Op::kReduceGradients}}};
  // In one batch with the send, the receive keeps nobody.
  validate_schedule(schedule);
  // Behind the backward of its gradient the send comes too late.
  auto& first = schedule.stages[0];
  std::rotate(first.begin() + 2, first.begin() + 4, first.begin() + 6);
  expect_error(
      [&] { validate_schedule(schedule); },
      {"deadlocks",
       "Stage 0: receive of the gradient of micro-batch 0",
       "Stage 1: receive of the activation of micro-batch 1"});
}

// Two neighbouring instructions in another order: either the validator has an
// objection, or it is still a schedule with the same number of instructions.
TEST(ValidateSchedule, SwapsAreFoundOrHarmless) {
  std::mt19937 random(7);
  int refused = 0;
  int accepted = 0;
  for_every_schedule([&](Kind kind, const PipelineShape& shape) {
    PipelineSchedule schedule = make_schedule(kind, shape);
    auto& list = schedule.stages[random() % schedule.stages.size()];
    const std::size_t i = random() % (list.size() - 1);
    std::swap(list[i], list[i + 1]);
    try {
      validate_schedule(schedule);
      ++accepted;
    } catch (const Error&) {
      ++refused;
    }
  });
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);
}

// Removing any one instruction of any schedule is noticed.
TEST(ValidateSchedule, NothingIsSuperfluous) {
  for_every_schedule([&](Kind kind, const PipelineShape& shape) {
    if (shape.stages > 4 || shape.micro_batches > 8) {
      return;
    }
    const PipelineSchedule good = make_schedule(kind, shape);
    for (std::size_t stage = 0; stage < good.stages.size(); ++stage) {
      for (std::size_t i = 0; i < good.stages[stage].size(); ++i) {
        PipelineSchedule bad = good;
        auto& list = bad.stages[stage];
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_THROW(validate_schedule(bad), Error)
            << "stage " << stage << ": " << describe(good.stages[stage][i]);
      }
    }
  });
}

} // namespace tessera::pipeline::validate_schedule_test
