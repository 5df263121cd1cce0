// SPDX-License-Identifier: Apache-2.0
// Backward writes over gradients that nobody else holds, with the same bits.
#include "runtime/memory/spent_gradients_cases.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace tessera::runtime::spent_gradients_test {

namespace {

namespace cases = tests::spent_gradients_cases;

using cases::functions;
using torch::Tensor;

class SpentGradients : public testing::Test {
 protected:
  void SetUp() override {
    reuse_spent_gradients(true, at::kCPU);
  }
  void TearDown() override {
    reuse_spent_gradients(true, at::kCPU); // as init() leaves it
  }
};

} // namespace

TEST_F(SpentGradients, AreWrittenOverWithTheSameBits) {
  cases::expect_written_over_with_the_same_bits(
      at::kCPU, {at::kFloat, at::kDouble, at::kBFloat16});
}

TEST_F(SpentGradients, StayWhereSomebodyHoldsThem) {
  for (const auto& [name, function] : functions()) {
    SCOPED_TRACE(name);
    const Tensor x = torch::randn({5, 7}).requires_grad_();
    const Tensor given = torch::randn({5, 7});
    const Tensor before = given.clone();
    // Held by the caller.
    const Tensor y = function(x);
    y.backward(given, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(given, before));

    // Kept as the gradient of y.
    y.retain_grad();
    (y * before).sum().backward(Tensor(), /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(y.grad(), before));

    // By a tensor that shares its memory alone.
    Tensor same;
    y.register_hook([&](const Tensor& g) { same = g.detach(); });
    (y * before).sum().backward(Tensor(), /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(same, before));
  }
}

TEST_F(SpentGradients, StayWhereTheyArriveAtTwoPlaces) {
  torch::manual_seed(5);
  const Tensor x = torch::randn({8, 8}).requires_grad_();
  const Tensor other = torch::randn({8, 8}).requires_grad_();
  const Tensor weights = torch::randn({8, 8});
  // An addition passes the same tensor to both.
  ((torch::tanh(x) + other) * weights).sum().backward();
  EXPECT_TRUE(torch::equal(other.grad(), weights));
  const Tensor self_tensor = torch::randn({8, 8}).requires_grad_();
  const Tensor yours = self_tensor.detach().clone().requires_grad_();
  ((torch::tanh(self_tensor) + torch::sigmoid(yours)) * weights)
      .sum()
      .backward();
  const Tensor t = torch::tanh(self_tensor.detach());
  const Tensor s = torch::sigmoid(yours.detach());
  EXPECT_TRUE(torch::allclose(self_tensor.grad(), weights * (1 - t * t)));
  EXPECT_TRUE(torch::allclose(yours.grad(), weights * (s * (1 - s))));
}

TEST_F(SpentGradients, StayWhereTheMemoryIsNotLibTorchs) {
  const Tensor x = torch::randn({16}).requires_grad_();
  std::vector<float> values(16, 1.0f);
  const Tensor y = torch::tanh(x);
  y.register_hook(
      [&](const Tensor&) { return torch::from_blob(values.data(), {16}); });
  y.sum().backward();
  EXPECT_EQ(values, std::vector<float>(16, 1.0f));
}

namespace {

/// Uses its gradient after an operator that writes over gradients elsewhere.
struct UsesItTwice : torch::autograd::Function<UsesItTwice> {
  static Tensor forward(
      torch::autograd::AutogradContext* context,
      const Tensor& x) {
    const Tensor y = torch::tanh(x);
    context->save_for_backward({y});
    return y;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const Tensor y = context->get_saved_variables()[0];
    const Tensor gradient = gradients[0] * 1; // held here alone
    const Tensor result = at::tanh_backward(gradient, y);
    return {result + gradient};
  }
};

} // namespace

TEST_F(SpentGradients, StayWhereTheCallerIsNotAutograd) {
  const Tensor x = torch::randn({6, 6}).requires_grad_();
  UsesItTwice::apply(x).sum().backward();
  const Tensor y = torch::tanh(x.detach());
  EXPECT_TRUE(torch::allclose(x.grad(), (1 - y * y) + 1));

  const Tensor gradient = torch::ones({6, 6});
  at::tanh_backward(gradient, y);
  EXPECT_TRUE(torch::equal(gradient, torch::ones({6, 6})));
}

namespace {

/// Asks in a node of backward, of gradients that this alone holds.
struct AsksWhichAreSpent : torch::autograd::Function<AsksWhichAreSpent> {
  static Tensor forward(
      torch::autograd::AutogradContext* /*context*/,
      const Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* /*context*/,
      torch::autograd::variable_list gradients) {
    const std::string node = torch::autograd::get_current_node()->name();
    const Tensor kept = torch::ones({4, 6});
    const auto spent = [&](const Tensor& gradient,
                           const Tensor& beside,
                           torch::ScalarType dtype = torch::kFloat) {
      return is_spent(gradient, beside, dtype, node, 1);
    };
    EXPECT_TRUE(spent(torch::ones({4, 6}), kept));
    EXPECT_FALSE(spent(torch::ones({4, 6}), kept, torch::kBFloat16));
    EXPECT_FALSE(spent(torch::ones({6, 4}), kept));
    // Not contiguous: clone() keeps the strides.
    const Tensor turned = torch::ones({6, 4}).t();
    EXPECT_FALSE(spent(turned.clone(), kept));
    EXPECT_FALSE(spent(torch::ones({4, 6}), turned));
    const torch::AutoGradMode with_graph(true);
    EXPECT_FALSE(spent(torch::ones({4, 6}), kept));
    return {gradients[0] * 2};
  }
};

} // namespace

TEST_F(SpentGradients, HaveTheDtypeAndLayoutOfTheResult) {
  const Tensor x = torch::ones({2}).requires_grad_();
  AsksWhichAreSpent::apply(x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 2.0)));
}

TEST_F(SpentGradients, AreNotWrittenOverInASecondDerivative) {
  const Tensor x = torch::randn({9}, torch::kDouble).requires_grad_();
  const auto slope = torch::autograd::grad(
      {torch::tanh(x).pow(2).sum()}, {x}, {}, true, true)[0];
  slope.sum().backward();
  const Tensor t = torch::tanh(x.detach());
  const Tensor s = 1 - t * t;
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * s * s - 4 * t * t * s));
}

TEST_F(SpentGradients, LossOverAVocabularyTakesTwoMatrices) {
  install_cpu_memory_counter();
  constexpr int64_t kTokens = 300; // more than a dry run computes
  constexpr int64_t kVocabulary = 20011;
  constexpr double kMatrix = kTokens * kVocabulary * sizeof(float);
  const auto step = [] {
    const Tensor features = torch::zeros({kTokens, 4}).requires_grad_();
    const Tensor weight = torch::zeros({4, kVocabulary});
    const Tensor targets = torch::zeros({kTokens}, torch::kLong);
    Tensor loss =
        torch::nn::functional::cross_entropy(features.matmul(weight), targets);
    return loss;
  };
  for (const bool reuse : {true, false}) {
    reuse_spent_gradients(reuse, at::kCPU);
    const double matrices = reuse ? 2 : 3;
    Tensor loss = step();
    reset_cpu_bytes_peak();
    loss.backward();
    EXPECT_NEAR(cpu_bytes_peak() / kMatrix, matrices, 0.15);
    loss.reset();

    DryRun run;
    loss = step();
    run.heap().reset_peak();
    loss.backward();
    EXPECT_NEAR(run.heap().peak_bytes() / kMatrix, matrices, 0.15);
  }
}

} // namespace tessera::runtime::spent_gradients_test
