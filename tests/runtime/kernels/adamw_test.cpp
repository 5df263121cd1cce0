// SPDX-License-Identifier: Apache-2.0
// AdamW against LibTorch's own optimizer and against float64.

#include "runtime/kernels/adamw_reference.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

namespace tessera::runtime::adamw_test {

namespace {

constexpr int kSteps = 10;

std::vector<AdamWStep> hyperparameters() {
  return {
      {},
      {.lr = 2e-5, .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-6, .weight_decay = 0},
      {.lr = 0.3, .beta1 = 0, .beta2 = 0.5, .eps = 1e-3, .weight_decay = 0.5},
      {.lr = 6e-4, .beta1 = 0.95, .beta2 = 0.9999, .eps = 0},
  };
}

double unit_of(at::ScalarType dtype) {
  return std::ldexp(1.0, dtype == at::kFloat ? -23 : -52);
}

/// Ten steps of adamw_ and of torch::optim::AdamW from the same start. Both
/// moments must have the same bits after each. LibTorch's root may be one unit
/// in the last place away from the correct one (see [Note: the bits of AdamW]),
/// so a weight may differ after each step by two units of how far the step
/// moved it, and by the unit that its sum then rounds the other way.
void expect_equal_to_libtorch(
    int64_t numel,
    int64_t offset,
    AdamWStep step,
    at::ScalarType dtype) {
  SCOPED_TRACE(
      "numel " + std::to_string(numel) + ", offset " + std::to_string(offset) +
      ", lr " + std::to_string(step.lr));
  torch::manual_seed(numel * 31 + offset);
  AdamWState state(numel, offset, dtype);
  LibTorchAdamW reference(state.master, step);
  at::Tensor bound = at::zeros_like(state.master);
  for (step.step = 1; step.step <= kSteps; ++step.step) {
    state.grad.copy_(random_spread(numel, dtype));
    const at::Tensor before = reference.master().clone();
    reference.step(state.grad);
    state.update(step);
    const at::Tensor after = reference.master();
    const at::Tensor moved =
        (after - before * (1 - step.lr * step.weight_decay)).abs();
    bound +=
        unit_of(dtype) * (2 * moved + at::maximum(before.abs(), after.abs()));
    ASSERT_TRUE(((state.master - after).abs() <= bound).all().item<bool>());
    ASSERT_TRUE(same_bits(state.exp_avg, reference.exp_avg()));
    ASSERT_TRUE(same_bits(state.exp_avg_sq, reference.exp_avg_sq()));
  }
}

class AdamW : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (at::get_cpu_capability() == "DEFAULT") {
      GTEST_SKIP() << "ATen's kernels for processors without AVX2 do not fuse, "
                      "so their bits are others";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    AdamW,
    ::testing::Values(at::kFloat, at::kDouble),
    [](const auto& info) { return std::string(c10::toString(info.param)); });

} // namespace

TEST_P(AdamW, EqualsLibTorchAtEverySmallSizeAndStart) {
  for (int64_t numel = 0; numel <= 129; ++numel) {
    expect_equal_to_libtorch(numel, numel % 17, {}, GetParam());
  }
}

TEST_P(AdamW, EqualsLibTorchOnBigShards) {
  // Above ATen's grain of 32768 elements, so that it and adamw_ split the work
  // over threads, at different places.
  expect_equal_to_libtorch(32769, 0, {}, GetParam());
  expect_equal_to_libtorch(100003, 1, {}, GetParam());
  expect_equal_to_libtorch(262144, 7, {}, GetParam());
}

TEST_P(AdamW, EqualsLibTorchForAllHyperparameters) {
  for (const AdamWStep& step : hyperparameters()) {
    expect_equal_to_libtorch(5003, 3, step, GetParam());
  }
}

TEST_P(AdamW, EqualsLibTorchLateInTraining) {
  AdamWState state(1000, 0, GetParam());
  LibTorchAdamW reference(state.master, {});
  reference.set_step(123456);
  reference.step(state.grad);
  state.update({.step = 123457});
  // One unit of the weights, which are far larger than the step, see above.
  EXPECT_TRUE(torch::allclose(
      state.master,
      reference.master(),
      unit_of(GetParam()),
      1e-3 * unit_of(GetParam())));
}

TEST_P(AdamW, EqualsLibTorchOnExtremeGradients) {
  const double tiny = GetParam() == at::kFloat ? 1e-44 : 1e-320;
  const double huge = GetParam() == at::kFloat ? 1e38 : 1e300;
  const double infinity = INFINITY;
  const std::vector<double> values = {
      0.0, -0.0, tiny, -tiny, 1e-20, huge, -huge, infinity, -infinity, NAN};
  AdamWState state(static_cast<int64_t>(values.size()), 0, GetParam());
  LibTorchAdamW reference(state.master, {});
  state.grad.copy_(torch::tensor(values, GetParam()));
  for (int64_t step = 1; step <= 3; ++step) {
    reference.step(state.grad);
    state.update({.step = step});
    EXPECT_TRUE(torch::allclose(
        state.master,
        reference.master(),
        static_cast<double>(step) * unit_of(GetParam()),
        /*atol=*/step * 2e-3 * unit_of(GetParam()),
        /*equal_nan=*/true));
    EXPECT_TRUE(same_bits_or_nan(state.exp_avg, reference.exp_avg()));
    EXPECT_TRUE(same_bits_or_nan(state.exp_avg_sq, reference.exp_avg_sq()));
  }
}

TEST_P(AdamW, ScalesTheGradientFirst) {
  AdamWState scaled(777, 0, GetParam());
  AdamWState plain = scaled.clone();
  const double factor = 0.3;
  // A product with a tensor's scalar rounds the factor to the tensor's type,
  // as adamw_ does.
  plain.grad.mul_(factor);
  scaled.update({.grad_scale = factor});
  plain.update({});
  EXPECT_TRUE(same_bits(scaled.master, plain.master));
  EXPECT_TRUE(same_bits(scaled.exp_avg_sq, plain.exp_avg_sq));
}

TEST_P(AdamW, WritesTheMasterInLowPrecision) {
  for (at::ScalarType format : {at::kBFloat16, at::kHalf}) {
    for (int64_t numel : {1, 7, 8, 15, 16, 17, 33, 4099}) {
      AdamWState state(numel, 0, GetParam());
      // Beyond both ends of float16's range, with denormals of both formats.
      state.master.copy_(random_spread(numel, GetParam(), /*decades=*/15));
      at::Tensor low = at::empty({numel + 1}, format).narrow(0, 1, numel);
      state.update({.lr = 1e-30}, low);
      EXPECT_TRUE(same_bits(low, state.master.to(format)))
          << format << ", numel " << numel;
    }
  }
}

TEST(AdamWAccuracy, StaysCloseToFloat64OverTenSteps) {
  AdamWState state(4099, 0, at::kFloat);
  AdamWState exact = state.to(at::kDouble);
  const at::Tensor start = state.master.clone();
  AdamWStep step{.lr = 1e-2};
  for (step.step = 1; step.step <= kSteps; ++step.step) {
    state.grad.copy_(random_spread(4099, at::kFloat));
    exact.grad.copy_(state.grad);
    state.update(step);
    reference_adamw_float64(exact, step);
  }
  // Per step: half a unit in the last place for each of the product with the
  // decay and the sum (2 * 2^-24 of |master|), and some six roundings in an
  // update of at most lr * 1.1 or so (6 * 2^-24 of it, taken as 16).
  const double unit = std::ldexp(1.0, -24);
  at::Tensor bound =
      kSteps * unit * (2 * (start.abs() + kSteps * 1e-2) + 16 * 1e-2);
  at::Tensor error = (state.master.to(at::kDouble) - exact.master).abs();
  EXPECT_TRUE((error <= bound).all().item<bool>())
      << (error / bound).max().item<double>() << " of the bound";
}

TEST(AdamWAccuracy, DriftsNoMoreThanLibTorchOverAThousandSteps) {
  AdamWState state(513, 0, at::kFloat);
  AdamWState exact = state.to(at::kDouble);
  AdamWStep step;
  LibTorchAdamW libtorch(state.master, step);
  for (step.step = 1; step.step <= 1000; ++step.step) {
    state.grad.copy_(at::randn({513}));
    exact.grad.copy_(state.grad);
    libtorch.step(state.grad);
    state.update(step);
    reference_adamw_float64(exact, step);
  }
  const auto drift = [&](const at::Tensor& master) {
    return (master.to(at::kDouble) - exact.master).norm().item<double>();
  };
  // The errors are random walks: correct roots change where they go, not how
  // far, so 5 % more is not worse.
  EXPECT_LE(drift(state.master), 1.05 * drift(libtorch.master()));
}

} // namespace tessera::runtime::adamw_test
