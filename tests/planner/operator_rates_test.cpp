// SPDX-License-Identifier: Apache-2.0
// Times of operators from measured calls, which can be checked by hand.
#include "tessera/planner/operator_rates.h"

#include "support/expect_error.h"
#include "tessera/planner/operator_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>

namespace tessera::planner::operator_rates_test {

namespace {

MeasuredSteps some_steps() {
  return {
      .operators =
          {{.name = "aten::mm", .work = 1600, .seconds = 8},
           {.name = "aten::mm", .work = 100, .seconds = 2},
           // Of another layer: with the one above, a mean of 3 s.
           {.name = "aten::mm", .work = 100, .seconds = 4},
           {.name = "aten::mm", .in_backward = true, .work = 100, .seconds = 5},
           {.name = "aten::add", .work = 10, .seconds = 1}},
      .kernels = 20,
      .others = 1};
}

double seconds_of(const OperatorWork& work) {
  return OperatorRates(some_steps()).seconds(work).value_or(-1);
}

OperatorWork product(int64_t calls, double flops) {
  return {.name = "aten::mm", .calls = calls, .flops = flops, .bytes = 1};
}

} // namespace

TEST(OperatorRates, ATimeIsThatOfCallsWithAsMuchWork) {
  EXPECT_DOUBLE_EQ(seconds_of(product(1, 100)), 3);
  EXPECT_DOUBLE_EQ(seconds_of(product(2, 3200)), 16);
  // Half way in logarithms, and at the rates of the ends.
  EXPECT_DOUBLE_EQ(seconds_of(product(1, 400)), std::sqrt(3.0 * 8.0));
  EXPECT_DOUBLE_EQ(seconds_of(product(1, 16000)), 80);
  EXPECT_DOUBLE_EQ(seconds_of(product(10, 100)), 3);
  // Operators without products by their bytes.
  EXPECT_DOUBLE_EQ(
      seconds_of({.name = "aten::add", .calls = 2, .bytes = 40}), 4);
}

TEST(OperatorRates, DirectionsDifferAndStandInForEachOther) {
  OperatorWork back = product(1, 100);
  back.in_backward = true;
  EXPECT_DOUBLE_EQ(seconds_of(back), 5);
  EXPECT_DOUBLE_EQ(
      seconds_of(
          {.name = "aten::add", .in_backward = true, .calls = 1, .bytes = 10}),
      1);
}

TEST(OperatorRates, SayNothingOfOthers) {
  OperatorWork other = product(1, 100);
  other.dtype = at::kBFloat16;
  EXPECT_EQ(seconds_of(other), -1);
  EXPECT_EQ(seconds_of({.name = "aten::sub", .calls = 1, .bytes = 1}), -1);
  EXPECT_EQ(seconds_of({.name = "aten::add", .calls = 1}), -1);
}

TEST(OperatorRates, ReplaceRatesOfTheDevice) {
  DeviceRates rates{.flops_32bit = 50, .device_memory = 10};
  const OperatorWork mm = product(1, 100);
  const OperatorWork sub{.name = "aten::sub", .calls = 1, .bytes = 30};
  EXPECT_DOUBLE_EQ(operator_seconds(mm, mm.flops, false, rates), 2);
  EXPECT_DOUBLE_EQ(kernel_seconds(sub, rates), 3);
  rates.operators = std::make_shared<OperatorRates>(some_steps());
  EXPECT_DOUBLE_EQ(operator_seconds(mm, mm.flops, false, rates), 3);
  EXPECT_DOUBLE_EQ(operator_seconds(sub, 0, false, rates), 3);
  EXPECT_DOUBLE_EQ(kernel_seconds(sub, rates), 1.5);
}

TEST(OperatorRates, RoundedFactorsHaveTheirOwn) {
  MeasuredSteps steps = some_steps();
  steps.operators.push_back(
      {.name = "aten::mm", .is_rounded = true, .work = 100, .seconds = 1});
  DeviceRates rates{.flops_32bit = 50, .flops_rounded = 200};
  rates.device_memory = 1e9;
  rates.operators = std::make_shared<OperatorRates>(steps);
  const OperatorWork mm = product(1, 100);
  OperatorWork addmm = mm;
  addmm.name = "aten::addmm"; // not measured
  const auto seconds = [&](const OperatorWork& work) {
    return operator_seconds(work, work.flops, false, rates);
  };
  EXPECT_DOUBLE_EQ(seconds(mm), 3);
  EXPECT_DOUBLE_EQ(seconds(addmm), 2);
  rates.rounds_products = true;
  EXPECT_DOUBLE_EQ(seconds(mm), 1);
  EXPECT_DOUBLE_EQ(seconds(addmm), 0.5);
  // What was measured without rounding, where nothing was with it.
  rates.operators = std::make_shared<OperatorRates>(some_steps());
  EXPECT_DOUBLE_EQ(seconds(mm), 0.5);
  rates.flops_rounded = 0;
  EXPECT_DOUBLE_EQ(seconds(mm), 3);
}

TEST(OperatorRates, RefuseWhatIsNotPositive) {
  MeasuredSteps steps = some_steps();
  steps.operators[0].seconds = 0;
  expect_error([&] { OperatorRates{steps}; }, {"aten::mm"});
  steps = some_steps();
  steps.kernels = 0;
  expect_error([&] { OperatorRates{steps}; }, {"rate of kernels is 0"});
}

} // namespace tessera::planner::operator_rates_test
