// SPDX-License-Identifier: Apache-2.0
// How far one step of AdamW is from the same step in float64.
#include "runtime/kernels/adamw_reference.h"
#include "tessera/runtime/kernels/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tessera {

namespace {

/// One unit in the last place of a float32 as large as x.
double unit(double x) {
  const double least = std::ldexp(1.0, -126);
  return std::ldexp(1.0, std::ilogb(std::max(std::abs(x), least)) - 23);
}

/// The largest distances seen, in units of the largest term of each sum: what
/// cancels leaves the rounding of its terms behind.
struct Worst {
  double exp_avg = 0;
  double exp_avg_sq = 0;
  double master = 0;
};

/// A step of one element in float64, from scalars as the kernel has them.
void compare(
    const AdamWScalars<float>& s,
    double p,
    double g,
    double m,
    double v,
    float new_p,
    float new_m,
    float new_v,
    Worst& worst) {
  const auto distance = [](double exact, float found, double scale) {
    // To the correctly rounded value, which is what a float can be.
    const double rounded = static_cast<float>(exact);
    return std::abs(rounded - static_cast<double>(found)) / unit(scale);
  };
  const double old_m = m * double{s.beta1};
  const double more_m = g * double{s.one_minus_beta1};
  m = old_m + more_m;
  worst.exp_avg = std::max(
      worst.exp_avg,
      distance(m, new_m, std::max(std::abs(old_m), std::abs(more_m))));
  v = v * double{s.beta2} + double{s.one_minus_beta2} * g * g;
  worst.exp_avg_sq = std::max(worst.exp_avg_sq, distance(v, new_v, v));
  const double denom =
      std::sqrt(v) / double{s.sqrt_bias_correction2} + double{s.eps};
  const double update = double{s.minus_step_size} * m / denom;
  const double old_p = p * double{s.decay};
  worst.master = std::max(
      worst.master,
      distance(
          old_p + update,
          new_p,
          std::max(
              {std::abs(old_p), std::abs(update), std::abs(old_p + update)})));
}

Worst worst_of_steps(double weight_scale) {
  constexpr int64_t kNumel = 20'011;
  Worst worst;
  AdamWState state(kNumel, 0, at::kFloat);
  state.master.mul_(weight_scale);
  for (int64_t t = 1; t <= 30; ++t) {
    state.grad.copy_(at::randn({kNumel}) * 1e-2);
    const AdamWState before = state.clone();
    const AdamWStep step{.step = t};
    adamw_(state.master, state.grad, state.exp_avg, state.exp_avg_sq, step);
    const AdamWScalars<float> scalars(step);
    for (int64_t i = 0; i < kNumel; ++i) {
      const auto at = [i](const at::Tensor& tensor) {
        return tensor.const_data_ptr<float>()[i];
      };
      compare(
          scalars,
          at(before.master),
          at(before.grad),
          at(before.exp_avg),
          at(before.exp_avg_sq),
          at(state.master),
          at(state.exp_avg),
          at(state.exp_avg_sq),
          worst);
    }
  }
  return worst;
}

} // namespace

TEST(AdamWAccuracy, EachStepIsWithinOneUnitOfTheCorrectlyRounded) {
  // Weights around one, with rates of 1e-3: the usual case.
  const Worst worst = worst_of_steps(1);
  EXPECT_LE(worst.exp_avg, 1);
  EXPECT_LE(worst.exp_avg_sq, 1);
  EXPECT_LE(worst.master, 1);
}

TEST(AdamWAccuracy, AnUpdateFarAboveItsWeightIsWithinFour) {
  // Then the weight is the quotient, with a rounding each of product, root, two
  // quotients and a sum, and of exp_avg, whose terms may cancel.
  const Worst worst = worst_of_steps(1e-6);
  EXPECT_LE(worst.exp_avg, 1);
  EXPECT_LE(worst.exp_avg_sq, 1);
  EXPECT_LE(worst.master, 4);
}

} // namespace tessera
