// SPDX-License-Identifier: Apache-2.0
// How far one step of AdamW is from the same step in float64.
#include "runtime/kernels/adamw_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace tessera::runtime::update_accuracy_test {

namespace {

/// One unit in the last place of a float32 as large as x.
double unit(double x) {
  const double least = std::ldexp(1.0, -126);
  return std::ldexp(1.0, std::ilogb(std::max(std::abs(x), least)) - 23);
}

/// The largest distances seen between what the kernel stored and what its
/// inputs give in float64, correctly rounded; in units of the largest of a sum
/// and its terms, for what cancels leaves the rounding of its terms behind. The
/// inputs of the weights are the moments as they were stored.
struct Worst {
  double exp_avg = 0;
  double exp_avg_sq = 0;
  double master = 0; ///< updates of at most an eighth of the weight
  double small_master = 0; ///< updates above that
};

/// A step of one element in float64, from scalars as the kernel has them.
void compare(
    const AdamWRule<float>& s,
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
  const auto largest = [](double a, double b) {
    return std::max({std::abs(a), std::abs(b), std::abs(a + b)});
  };
  const double old_m = m * double{s.beta1};
  const double more_m = g * double{s.one_minus_beta1};
  worst.exp_avg = std::max(
      worst.exp_avg, distance(old_m + more_m, new_m, largest(old_m, more_m)));
  v = v * double{s.beta2} + double{s.one_minus_beta2} * g * g;
  worst.exp_avg_sq = std::max(worst.exp_avg_sq, distance(v, new_v, v));
  const double denom =
      std::sqrt(double{new_v}) / double{s.sqrt_bias_correction2} +
      double{s.eps};
  const double update = double{s.minus_step_size} * double{new_m} / denom;
  const double old_p = p * double{s.decay};
  double& master = std::abs(update) <= std::abs(old_p) / 8 ? worst.master
                                                           : worst.small_master;
  master =
      std::max(master, distance(old_p + update, new_p, largest(old_p, update)));
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
    state.update(step);
    const AdamWRule<float> scalars(step);
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

TEST(AdamWStepAccuracy, IsWithinOneUnitOfTheCorrectlyRounded) {
  // Weights of the size of their updates have the roundings of the update too:
  // a product, a root, two quotients and a sum, each of half a unit, which may
  // be one of a result in the lower half of its binade.
  for (const double weight_scale : {1.0, 1e-3, 1e-6}) {
    const Worst worst = worst_of_steps(weight_scale);
    EXPECT_LE(worst.exp_avg, 1) << weight_scale;
    EXPECT_LE(worst.exp_avg_sq, 1) << weight_scale;
    EXPECT_LE(worst.master, 1) << weight_scale;
    EXPECT_LE(worst.small_master, 5) << weight_scale;
  }
}

} // namespace tessera::runtime::update_accuracy_test
