// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/mixed_norm.h"

#include "runtime/kernels/norm_cases.h"
#include "support/expect_error.h"
#include "tessera/runtime/memory/saved_tensor_hooks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace tessera::runtime::mixed_norm_test {

namespace {

using norm_cases::is_rounded;
using norm_cases::reference_norm;
using norm_cases::wide_leaf;

constexpr double kEps = 1e-5;

/// Notes what is saved.
struct NotingSink : ActivationSink {
  struct Kept : SavedActivation {
    explicit Kept(at::Tensor tensor) : tensor(std::move(tensor)) {}
    at::Tensor give() override {
      return tensor;
    }
    at::Tensor tensor;
  };
  std::unique_ptr<SavedActivation> take(const at::Tensor& tensor, bool)
      override {
    saved.push_back(tensor.detach());
    return std::make_unique<Kept>(tensor.detach());
  }
  std::vector<at::Tensor> saved;
};

class MixedNorm
    : public ::testing::TestWithParam<std::tuple<at::ScalarType, bool>> {
 protected:
  at::ScalarType dtype() const {
    return std::get<0>(GetParam());
  }
  bool is_layer_norm() const {
    return std::get<1>(GetParam());
  }
  at::Tensor x_of(at::IntArrayRef sizes) const {
    return (at::randn(sizes) * 2 + 1).to(dtype()).requires_grad_();
  }
  at::Tensor norm(
      const at::Tensor& x,
      at::IntArrayRef shape,
      const at::Tensor& weight,
      const at::Tensor& bias) const {
    return is_layer_norm() ? mixed_layer_norm(x, shape, weight, bias, kEps)
                           : mixed_rms_norm(x, shape, weight, kEps);
  }

 private:
  void SetUp() override {
    torch::manual_seed(3);
  }
};

at::Tensor parameter(at::IntArrayRef shape) {
  return (at::rand(shape) + 0.5).requires_grad_();
}

/// Of the gradients of y's squares.
at::Tensor penalty(
    const at::Tensor& y,
    const at::Tensor& x,
    const at::Tensor& weight) {
  const auto gradients = torch::autograd::grad(
      {y.to(at::kDouble).square().sum()},
      {x, weight},
      {},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  return gradients[0].to(at::kDouble).square().sum() +
         gradients[1].to(at::kDouble).square().sum();
}

/// Gradients that have passed through several roundings to `dtype`.
void expect_second_gradients(
    const at::Tensor& local,
    const at::Tensor& wide,
    at::ScalarType dtype) {
  const double tolerance = dtype == at::kHalf ? 5e-3 : 4e-2;
  const at::Tensor& exact = wide.grad();
  EXPECT_LE(
      (local.grad().to(at::kDouble) - exact).abs().max().item<double>(),
      tolerance * exact.abs().max().item<double>());
}

} // namespace

TEST_P(MixedNorm, IsAsInFloat64) {
  for (const int64_t features : {3, 7, 16, 100, 1030}) {
    for (const bool has_weight : {true, false}) {
      for (const bool has_bias : {true, false}) {
        if (has_bias && !is_layer_norm()) {
          continue;
        }
        norm_cases::check_mixed_norm(
            {.dtype = dtype(),
             .is_layer_norm = is_layer_norm(),
             .rows = 15,
             .features = features,
             .has_weight = has_weight,
             .has_bias = has_bias});
      }
    }
  }
}

TEST_P(MixedNorm, TakesTransposedActivationsAndSeveralDimensions) {
  const at::Tensor leaf = x_of({6, 4, 5});
  const at::Tensor x = leaf.transpose(0, 2); // [5, 4, 6]
  const at::Tensor weight = parameter({4, 6});
  const at::Tensor y = norm(x, {4, 6}, weight, {});
  y.sum().backward();
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
  EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
  EXPECT_TRUE(is_rounded(
      y.reshape({5, 24}),
      reference_norm(
          x.to(at::kDouble).reshape({5, 24}),
          weight.to(at::kDouble).reshape({24}),
          {},
          kEps,
          is_layer_norm())));
  EXPECT_EQ(norm(x_of({0, 8}), {8}, parameter({8}), {}).numel(), 0);
}

TEST_P(MixedNorm, SavesTheActivationAsItIs) {
  const auto sink = std::make_shared<NotingSink>();
  const at::Tensor x = x_of({32, 64});
  const at::Tensor weight = parameter({64});
  at::Tensor y;
  {
    const SavedTensorScope scope(sink);
    y = norm(x, {64}, weight, {});
  }
  bool has_x = false;
  size_t others = 0;
  for (const at::Tensor& saved : sink->saved) {
    const bool is_x = saved.data_ptr() == x.data_ptr();
    has_x = has_x || is_x;
    others +=
        is_x || saved.data_ptr() == weight.data_ptr() ? 0 : saved.nbytes();
  }
  EXPECT_TRUE(has_x);
  // The statistics of the rows.
  EXPECT_EQ(others, 32 * sizeof(float) * (is_layer_norm() ? 2 : 1));
}

TEST_P(MixedNorm, FrozenParametersHaveNoGradient) {
  const at::Tensor x = x_of({8, 16});
  const at::Tensor weight = parameter({16}).detach();
  norm(x, {16}, weight, {}).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  const at::Tensor fixed = x.detach();
  const at::Tensor trained = parameter({16});
  norm(fixed, {16}, trained, {}).sum().backward();
  EXPECT_TRUE(trained.grad().defined());
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_FALSE(fixed.grad().defined());
}

TEST_P(MixedNorm, IsDifferentiableTwice) {
  const at::Tensor x = x_of({4, 9});
  const at::Tensor weight = parameter({9});
  const at::Tensor bias = is_layer_norm() ? parameter({9}) : at::Tensor();
  const at::Tensor wide_x = wide_leaf(x);
  const at::Tensor wide_weight = wide_leaf(weight);
  penalty(norm(x, {9}, weight, bias), x, weight).backward();
  penalty(
      reference_norm(
          wide_x, wide_weight, wide_leaf(bias), kEps, is_layer_norm()),
      wide_x,
      wide_weight)
      .backward();
  expect_second_gradients(x, wide_x, dtype());
  expect_second_gradients(weight, wide_weight, dtype());
}

TEST(MixedGroupNorm, IsAsInFloat64) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const auto& which : norm_cases::group_norm_cases()) {
      norm_cases::check_mixed_group_norm(which, dtype);
    }
  }
}

TEST(MixedGroupNorm, IsDifferentiableTwice) {
  torch::manual_seed(3);
  const at::Tensor x =
      (at::randn({3, 6, 5}) * 2 + 1).to(at::kHalf).requires_grad_();
  const at::Tensor weight = parameter({6});
  const at::Tensor bias = parameter({6});
  const at::Tensor wide_x = wide_leaf(x);
  const at::Tensor wide_weight = wide_leaf(weight);
  penalty(mixed_group_norm(x, 2, weight, bias, kEps), x, weight).backward();
  penalty(
      at::group_norm(wide_x, 2, wide_weight, wide_leaf(bias), kEps),
      wide_x,
      wide_weight)
      .backward();
  expect_second_gradients(x, wide_x, at::kHalf);
  expect_second_gradients(weight, wide_weight, at::kHalf);
}

TEST(MixedGroupNorm, OtherArgumentsAreErrors) {
  const at::Tensor x = at::zeros({2, 6, 4}, at::kHalf);
  expect_error(
      [&] { mixed_group_norm(x, 4, {}, {}, kEps); }, {"[2, 6, 4]", "4 groups"});
  expect_error(
      [&] { mixed_group_norm(x, 3, at::ones({3}), {}, kEps); },
      {"[3]", "float32 of shape [6]"});
  expect_error(
      [&] { mixed_group_norm(x.to(at::kFloat), 3, {}, {}, kEps); },
      {"Float", "bfloat16 or float16"});
}

TEST_P(MixedNorm, DoesNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  const at::Tensor x = x_of({500, 300});
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    x.mutable_grad() = at::Tensor();
    const at::Tensor weight = at::ones({300}).requires_grad_();
    const at::Tensor y = norm(x, {300}, weight, {});
    y.square().sum().backward();
    return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad()};
  };
  const auto one = run(1);
  const auto two = run(2);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i], two[i])) << i;
  }
}

TEST_P(MixedNorm, OtherArgumentsAreErrors) {
  expect_error(
      [&] {
        norm(at::zeros({2, 4}), {4}, {}, {});
      },
      {"Float", "[2, 4]", "bfloat16 or float16"});
  expect_error([&] { norm(x_of({2, 4}), {3}, {}, {}); }, {"[3]"});
  expect_error(
      [&] {
        norm(x_of({2, 4}), {4}, at::ones({4}, dtype()), {});
      },
      {"a parameter is", "float32 of shape [4]"});
  expect_error(
      [&] {
        norm(x_of({2, 4}), {4}, at::ones({1}), {});
      },
      {"[1]", "[4]"});
}

INSTANTIATE_TEST_SUITE_P(
    All,
    MixedNorm,
    ::testing::Combine(
        ::testing::Values(at::kBFloat16, at::kHalf),
        ::testing::Bool()),
    [](const auto& info) {
      return std::string(c10::toString(std::get<0>(info.param))) +
             (std::get<1>(info.param) ? "LayerNorm" : "RmsNorm");
    });

} // namespace tessera::runtime::mixed_norm_test
