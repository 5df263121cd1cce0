// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/residual_norm.h"

#include "support/expect_error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/residual_norm_kernels.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tessera::runtime::residual_norm_test {

namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

/// What a test of a residual norm leaves out or has.
struct Parts {
  bool centered = true;
  bool branch = true;
  bool mask = true;
  bool weight = true;
  bool bias = true;
  bool passes = true; ///< the sum is used as well
  double offset = 0;
  double scale = 1;
};

std::string name_of(const Parts& parts, at::ScalarType dtype) {
  std::string name = parts.centered ? "LayerNorm" : "RMSNorm";
  name += std::string(" of ") + at::toString(dtype);
  name += parts.branch ? ", branch" : "";
  name += parts.mask ? ", mask" : "";
  name += parts.weight ? ", weight" : "";
  name += parts.bias ? ", bias" : "";
  name += parts.passes ? ", sum" : "";
  return name;
}

std::vector<Parts> all_parts() {
  return {
      {},
      {.mask = false},
      {.mask = false, .scale = 0.5},
      {.branch = false, .mask = false},
      {.branch = false, .mask = false, .passes = false},
      {.weight = false, .bias = false},
      {.bias = false, .passes = false},
      {.centered = false, .bias = false, .scale = 2},
      {.centered = false, .mask = false, .bias = false},
      {.centered = false, .branch = false, .mask = false, .bias = false},
      {.centered = false,
       .branch = false,
       .mask = false,
       .bias = false,
       .passes = false,
       .offset = 1}};
}

constexpr double kEps = 1e-5;
constexpr double kKept = 0.75;

at::Tensor wide_leaf(const at::Tensor& x) {
  return x.detach().to(at::kDouble).requires_grad_();
}

struct Reference {
  at::Tensor sum;
  at::Tensor normed;
};

/// @param kept the sum as it has been rounded, which is normalized; undefined:
///   the exact one.
Reference reference(
    const at::Tensor& x,
    const at::Tensor& branch,
    const at::Tensor& mask,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const Parts& parts,
    const at::Tensor& kept) {
  at::Tensor sum = x;
  if (branch.defined()) {
    at::Tensor added = branch * (parts.scale / (parts.mask ? kKept : 1));
    sum = sum + (mask.defined() ? added * mask : added);
  }
  const at::Tensor exact = sum;
  if (kept.defined()) { // without a gradient of the rounding
    sum = sum + (kept.detach().to(at::kDouble) - sum.detach());
  }
  at::Tensor centered =
      parts.centered ? sum - sum.mean(-1, /*keepdim=*/true) : sum;
  at::Tensor normed =
      centered * (centered.square().mean(-1, true) + kEps).rsqrt();
  if (weight.defined()) {
    normed = normed * (weight + parts.offset);
  }
  return {exact, bias.defined() ? normed + bias : normed};
}

/// One rounding to the dtype, and what float32 computes less precisely,
/// relative to the largest number of the row.
void expect_rounded(
    const at::Tensor& found,
    const at::Tensor& exact,
    double error,
    const char* what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), exact.sizes()) << what;
  if (found.numel() == 0) {
    return;
  }
  const double unit = found.scalar_type() == at::kBFloat16 ? 0x1p-8
                      : found.scalar_type() == at::kHalf   ? 0x1p-11
                                                           : 0x1p-24;
  const at::Tensor bound =
      1.01 * unit * exact.abs() +
      error * exact.abs().amax(-1, /*keepdim=*/true).clamp_min(0.05) +
      (found.scalar_type() == at::kHalf ? 3.1e-8 : 0);
  const at::Tensor off = (found.to(at::kDouble) - exact).abs();
  EXPECT_TRUE((off <= bound).all().item<bool>())
      << what << " " << found.sizes() << ": off by " << off.max().item<double>()
      << ", of " << exact.abs().max().item<double>();
}

void check(
    const at::Tensor& x,
    const at::Tensor& branch_,
    const Parts& parts,
    double error = 4e-6) {
  SCOPED_TRACE(name_of(parts, x.scalar_type()));
  const auto dtype = x.scalar_type();
  const int64_t features = x.size(-1);
  const at::Tensor branch = parts.branch ? branch_ : at::Tensor();
  const at::Tensor mask =
      parts.mask ? at::empty(x.sizes(), at::kBool).bernoulli_(kKept)
                 : at::Tensor();
  const auto parameter = [&](bool is_there) {
    return is_there ? at::randn({features}).requires_grad_() : at::Tensor();
  };
  const at::Tensor weight = parameter(parts.weight);
  const at::Tensor bias = parameter(parts.bias);
  const auto wide = [](const at::Tensor& leaf) {
    return leaf.defined() ? wide_leaf(leaf) : leaf;
  };
  const at::Tensor wide_x = wide(x);
  const at::Tensor wide_branch = wide(branch);
  const at::Tensor wide_weight = wide(weight);
  const at::Tensor wide_bias = wide(bias);
  const auto [sum, normed] = residual_norm(
      x,
      branch,
      mask,
      weight,
      bias,
      {.eps = kEps,
       .centered = parts.centered,
       .weight_offset = parts.offset,
       .branch_scale = parts.scale / (parts.mask ? kKept : 1)});
  const Reference exact =
      reference(wide_x, wide_branch, mask, wide_weight, wide_bias, parts, sum);
  EXPECT_EQ(normed.scalar_type(), dtype);
  expect_rounded(sum, exact.sum, error, "sum");
  expect_rounded(normed, exact.normed, error, "normed");
  const at::Tensor of_normed = at::randn(x.sizes()).to(dtype);
  const at::Tensor of_sum = at::randn(x.sizes()).to(dtype);
  if (parts.passes) {
    torch::autograd::backward({sum, normed}, {of_sum, of_normed});
    torch::autograd::backward(
        {exact.sum, exact.normed},
        {of_sum.to(at::kDouble), of_normed.to(at::kDouble)});
  } else {
    normed.backward(of_normed);
    exact.normed.backward(of_normed.to(at::kDouble));
  }
  expect_rounded(x.grad(), wide_x.grad(), error, "gradient of x");
  if (branch.defined()) {
    expect_rounded(
        branch.grad(), wide_branch.grad(), error, "gradient of the branch");
  }
  // Sums of rows.
  for (const auto& [found, of, name] :
       {std::tuple{weight, wide_weight, "gradient of the weight"},
        std::tuple{bias, wide_bias, "gradient of the bias"}}) {
    if (found.defined()) {
      expect_rounded(found.grad(), of.grad(), 4 * error, name);
    }
  }
}

at::Tensor leaf(const at::Tensor& x, at::ScalarType dtype) {
  return x.to(dtype).requires_grad_();
}

} // namespace

TEST(ResidualNorm, IsAsInFloat64) {
  torch::manual_seed(3);
  for (const at::ScalarType dtype : kTypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {3, 7}, {2, 5, 33}, {0, 4}, {19}, {301, 131}, {4, 769}}) {
      for (const Parts& parts : all_parts()) {
        check(
            leaf(at::randn(sizes) * 3 + 1, dtype),
            leaf(at::randn(sizes), dtype),
            parts);
      }
    }
  }
}

TEST(ResidualNorm, TakesExtremeValues) {
  torch::manual_seed(3);
  const std::vector<int64_t> sizes = {5, 67};
  for (const Parts& parts : all_parts()) {
    for (const double size : {1e-30, 1e-6, 1e4, 1e15}) {
      check(
          leaf(at::randn(sizes) * size, at::kFloat),
          leaf(at::randn(sizes) * size, at::kFloat),
          parts);
      check(
          leaf(at::randn(sizes) * size, at::kBFloat16),
          leaf(at::randn(sizes) * size, at::kBFloat16),
          parts);
    }
    // A mean far from 0; in float32 the deviation is 1 of 1,000.
    check(
        leaf(at::randn(sizes) + 1e3, at::kFloat),
        leaf(at::randn(sizes), at::kFloat),
        parts,
        2e-3);
    check(
        leaf(at::zeros(sizes), at::kFloat),
        leaf(at::zeros(sizes), at::kFloat),
        parts);
  }
}

TEST(ResidualNorm, KeepsWhatIsNotFiniteInItsRow) {
  const at::Tensor x = at::ones({3, 37});
  x[1][36] = std::numeric_limits<float>::quiet_NaN();
  x[2][0] = std::numeric_limits<float>::infinity();
  const auto [sum, normed] =
      residual_norm(x, at::ones({3, 37}), {}, at::ones({37}), {}, {});
  EXPECT_TRUE(at::isnan(normed[1]).all().item<bool>());
  EXPECT_TRUE(at::isnan(normed[2]).all().item<bool>());
  EXPECT_TRUE(at::isfinite(normed[0]).all().item<bool>());
}

TEST(ResidualNorm, AllInstructionSetsComputeTheSame) {
  torch::manual_seed(3);
  constexpr int64_t kRows = 3;
  constexpr int64_t kFeatures = 45;
  for (const LowPrecision type :
       {LowPrecision::kNone, LowPrecision::kBFloat16, LowPrecision::kFloat16}) {
    const at::ScalarType dtype = type == LowPrecision::kNone ? at::kFloat
                                 : type == LowPrecision::kBFloat16
                                     ? at::kBFloat16
                                     : at::kHalf;
    const auto matrix = [&] { return at::randn({kRows, kFeatures}).to(dtype); };
    const at::Tensor x = matrix();
    const at::Tensor branch = matrix();
    const at::Tensor gradient = matrix();
    const at::Tensor passed = matrix();
    const at::Tensor mask =
        at::empty({kRows, kFeatures}, at::kBool).bernoulli_(0.5);
    const at::Tensor weight = at::randn({kFeatures});
    const auto results_of = [&](Isa isa) {
      std::vector<at::Tensor> results;
      for (int i = 0; i < 4; ++i) {
        results.push_back(at::zeros_like(x));
      }
      results.push_back(at::zeros({kRows, 2}));
      results.push_back(at::zeros({kFeatures}));
      results.push_back(at::zeros({kFeatures}));
      const auto* kept = static_cast<const uint8_t*>(mask.const_data_ptr());
      const ResidualNormKernel& kernel = residual_norm_kernel(isa);
      kernel.forward(
          {.type = type,
           .features = kFeatures,
           .x = x.const_data_ptr(),
           .branch = branch.const_data_ptr(),
           .mask = kept,
           .branch_scale = 2,
           .weight = weight.const_data_ptr<float>(),
           .bias = weight.const_data_ptr<float>(),
           .eps = 1e-5F,
           .centered = true,
           .sum = results[0].mutable_data_ptr(),
           .y = results[1].mutable_data_ptr(),
           .statistics = results[4].mutable_data_ptr<float>()},
          0,
          kRows);
      kernel.backward(
          {.type = type,
           .features = kFeatures,
           .gradient_sum = passed.const_data_ptr(),
           .gradient_y = gradient.const_data_ptr(),
           .sum = results[0].const_data_ptr(),
           .statistics = results[4].const_data_ptr<float>(),
           .mask = kept,
           .branch_scale = 2,
           .weight = weight.const_data_ptr<float>(),
           .centered = true,
           .gradient_x = results[2].mutable_data_ptr(),
           .gradient_branch = results[3].mutable_data_ptr()},
          0,
          kRows,
          results[5].mutable_data_ptr<float>(),
          results[6].mutable_data_ptr<float>());
      return results;
    };
    const auto expected = results_of(Isa::kPortable);
    for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
      if (!isa_available(isa)) {
        continue;
      }
      const auto found = results_of(isa);
      for (size_t i = 0; i < found.size(); ++i) {
        // Where the last bit differs before rounding, one unit after it.
        const double unit = i > 3 || type == LowPrecision::kNone ? 2e-6
                            : type == LowPrecision::kBFloat16    ? 0x1p-7
                                                                 : 0x1p-10;
        EXPECT_TRUE(at::allclose(
            found[i].to(at::kDouble),
            expected[i].to(at::kDouble),
            unit,
            unit * 0.1))
            << i << ", " << at::toString(dtype);
      }
    }
  }
}

TEST(ResidualNorm, DoesNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const auto results_with = [](int threads) {
    at::set_num_threads(threads);
    torch::manual_seed(3);
    const at::Tensor x = leaf(at::randn({777, 131}), at::kFloat);
    const at::Tensor weight = leaf(at::randn({131}), at::kFloat);
    const at::Tensor bias = leaf(at::randn({131}), at::kFloat);
    const at::Tensor mask = at::empty({777, 131}, at::kBool).bernoulli_(0.5);
    const auto [sum, normed] = residual_norm(
        x, leaf(at::randn({777, 131}), at::kFloat), mask, weight, bias, {});
    (normed * sum.detach().sin()).sum().backward();
    return std::vector{normed, x.grad(), weight.grad(), bias.grad()};
  };
  const auto one = results_with(1);
  const auto three = results_with(3);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(one[i].equal(three[i])) << i;
  }
}

TEST(ResidualNorm, PassesTheGradientOfTheSumAlone) {
  torch::manual_seed(3);
  const at::Tensor x = leaf(at::randn({3, 5}), at::kFloat);
  const at::Tensor branch = leaf(at::randn({3, 5}), at::kFloat);
  const at::Tensor weight = leaf(at::randn({5}), at::kFloat);
  const at::Tensor mask = at::empty({3, 5}, at::kBool).bernoulli_(0.5);
  const at::Tensor sum =
      residual_norm(x, branch, mask, weight, {}, {.branch_scale = 2}).sum;
  const at::Tensor gradient = at::randn({3, 5});
  sum.backward(gradient);
  EXPECT_TRUE(x.grad().equal(gradient));
  EXPECT_TRUE(branch.grad().equal(gradient * mask * 2));
  EXPECT_FALSE(weight.grad().defined());
}

TEST(ResidualNorm, IsTwiceDifferentiable) {
  torch::manual_seed(3);
  for (const Parts& parts : all_parts()) {
    SCOPED_TRACE(name_of(parts, at::kFloat));
    const at::Tensor x = leaf(at::randn({4, 6}), at::kFloat);
    const at::Tensor branch = leaf(at::randn({4, 6}), at::kFloat);
    const at::Tensor weight = leaf(at::randn({6}), at::kFloat);
    const at::Tensor mask = at::empty({4, 6}, at::kBool).bernoulli_(kKept);
    const std::vector<at::Tensor> leaves = {x, branch, weight};
    std::vector<at::Tensor> wide;
    for (const at::Tensor& one : leaves) {
      wide.push_back(wide_leaf(one));
    }
    const auto penalty = [&](const std::vector<at::Tensor>& of,
                             const at::Tensor& sum,
                             const at::Tensor& normed) {
      const auto gradients = torch::autograd::grad(
          {(normed.sin() * sum).sum()},
          of,
          {},
          true,
          /*create_graph=*/true,
          /*allow_unused=*/true);
      at::Tensor all = at::zeros({}, of[0].options());
      for (const at::Tensor& gradient : gradients) {
        all = gradient.defined() ? all + gradient.square().sum() : all;
      }
      all.backward();
    };
    const auto given = [](bool is_there, const at::Tensor& tensor) {
      return is_there ? tensor : at::Tensor();
    };
    const auto [sum, normed] = residual_norm(
        x,
        given(parts.branch, branch),
        given(parts.mask, mask),
        weight,
        {},
        {.eps = kEps,
         .centered = parts.centered,
         .weight_offset = parts.offset,
         .branch_scale = parts.scale / (parts.mask ? kKept : 1)});
    penalty(leaves, sum, normed);
    const Reference exact = reference(
        wide[0],
        given(parts.branch, wide[1]),
        given(parts.mask, mask),
        wide[2],
        {},
        parts,
        {});
    penalty(wide, exact.sum, exact.normed);
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (wide[i].grad().defined()) {
        EXPECT_TRUE(at::allclose(
            leaves[i].grad().to(at::kDouble), wide[i].grad(), 1e-4, 1e-3))
            << i;
      }
    }
  }
}

TEST(ResidualNorm, ComputesNoGradientThatNobodyWants) {
  const at::Tensor x = at::ones({3, 5});
  const at::Tensor weight = at::ones({5}).requires_grad_();
  const auto [sum, normed] = residual_norm(x, {}, {}, weight, {}, {});
  EXPECT_FALSE(sum.requires_grad());
  normed.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(residual_norm(x, {}, {}, weight, {}, {}).sum.is_same(x));
}

TEST(ResidualNorm, RefusesOtherArguments) {
  const at::Tensor x = at::ones({2, 3});
  expect_error(
      [&] { residual_norm(x.to(at::kDouble), {}, {}, {}, {}, {}); },
      {"residual_norm", "Double", "float32, bfloat16 or float16"});
  expect_error(
      [&] {
        residual_norm(x, at::ones({3, 2}), {}, {}, {}, {});
      },
      {"residual_norm", "branch", "[3, 2]", "[2, 3]"});
  expect_error(
      [&] { residual_norm(x, x, x, {}, {}, {}); },
      {"residual_norm", "mask", "Float", "bool"});
  expect_error(
      [&] { residual_norm(x, x, {}, at::ones({2}), {}, {}); },
      {"residual_norm", "parameter", "[2]", "[3]"});
}

TEST(ResidualNorm, CountsAsOneOperatorInDryRuns) {
  const DryRun run;
  const at::Tensor x = at::empty({64, 1024}).requires_grad_();
  const at::Tensor branch = at::empty({64, 1024}).requires_grad_();
  const auto [sum, normed] =
      residual_norm(x, branch, {}, at::empty({1024}).requires_grad_(), {}, {});
  torch::autograd::backward({sum, normed}, {x, branch});
  const auto bytes_of = [&](const std::string& name) {
    double bytes = 0;
    for (const OperatorWork& work : run.work()) {
      bytes += work.name == name ? work.bytes : 0;
    }
    return bytes;
  };
  constexpr double kMatrix = 64 * 1024 * 4;
  EXPECT_NEAR(bytes_of("tessera::residual_norm"), 4 * kMatrix, 0.05 * kMatrix);
  EXPECT_NEAR(
      bytes_of("tessera::residual_norm_backward"), 4 * kMatrix, 0.05 * kMatrix);
}

} // namespace tessera::runtime::residual_norm_test
