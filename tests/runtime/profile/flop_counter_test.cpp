// SPDX-License-Identifier: Apache-2.0
// Operations that are counted while operators run.
#include "tessera/runtime/profile/flop_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::runtime::flop_counter_test {

namespace {

template <typename Work>
double flops_of(const Work& work) {
  const FlopCounter counter;
  work();
  return counter.flops();
}

} // namespace

TEST(FlopCounter, CountsProductsOfForwardAndBackward) {
  const at::Tensor x = torch::randn({3, 5, 8});
  torch::nn::Linear linear(8, 16);
  at::Tensor y;
  const double forward = 2.0 * 15 * 8 * 16;
  EXPECT_EQ(flops_of([&] { y = linear(x); }), forward);
  // Only the weight has a gradient.
  EXPECT_EQ(flops_of([&] { y.sum().backward(); }), forward);
  const at::Tensor wanted = torch::randn({3, 5, 8}).requires_grad_();
  EXPECT_EQ(flops_of([&] { linear(wanted).sum().backward(); }), 3 * forward);
}

TEST(FlopCounter, CountsAConvolutionOnce) {
  const at::Tensor x = torch::randn({2, 4, 9, 9}).requires_grad_();
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(4, 6, 3).stride(2).padding(1).groups(2));
  // 5 x 5 positions of 6 channels, each of 2 input channels x 3 x 3.
  const double forward = 2.0 * 2 * 6 * 25 * 2 * 9;
  EXPECT_EQ(flops_of([&] { conv(x); }), forward);
  EXPECT_EQ(flops_of([&] { conv(x).sum().backward(); }), 3 * forward);
  torch::nn::ConvTranspose2d up(torch::nn::ConvTranspose2dOptions(4, 6, 3));
  EXPECT_EQ(
      flops_of([&] { up(x); }), 2.0 * 2 * 4 * 81 * 6 * 9); // 81 inputs a filter
}

TEST(FlopCounter, LeavesOutTheScoresThatAttentionComputesAgain) {
  const auto random = [] {
    return torch::randn({2, 3, 32, 8}).requires_grad_();
  };
  const at::Tensor q = random();
  const at::Tensor k = random();
  const at::Tensor v = random();
  const double product = 2.0 * 2 * 3 * 32 * 32 * 8;
  at::Tensor y;
  EXPECT_EQ(
      flops_of([&] { y = at::scaled_dot_product_attention(q, k, v); }),
      2 * product);
  EXPECT_EQ(flops_of([&] { y.sum().backward(); }), 4 * product);
}

TEST(FlopCounter, LeavesOutWhatABackwardComputesAgain) {
  struct Again : torch::autograd::Function<Again> {
    static at::Tensor forward(
        torch::autograd::AutogradContext* context,
        const at::Tensor& x,
        const at::Tensor& w) {
      context->save_for_backward({x, w});
      return x.mm(w);
    }
    static torch::autograd::variable_list backward(
        torch::autograd::AutogradContext* context,
        const torch::autograd::variable_list& gradients) {
      const auto saved = context->get_saved_variables();
      {
        const at::AutoGradMode with_gradients(true); // as checkpoint() does
        saved[0].mm(saved[1]);
      }
      return {gradients[0].mm(saved[1].t()), saved[0].t().mm(gradients[0])};
    }
  };
  const at::Tensor x = torch::randn({4, 4}).requires_grad_();
  const at::Tensor w = torch::randn({4, 4}).requires_grad_();
  EXPECT_EQ(
      flops_of([&] { Again::apply(x, w).sum().backward(); }), 3 * 2.0 * 64);
}

TEST(FlopCounter, CountsWhileItLivesOnly) {
  const at::Tensor x = torch::randn({4, 4});
  {
    const FlopCounter counter;
    const FlopCounter other;
    x.mm(x);
    EXPECT_EQ(counter.flops(), 128);
    EXPECT_EQ(other.flops(), 128);
  }
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  EXPECT_EQ(flops_of([&] { x.add(x); }), 0);
}

} // namespace tessera::runtime::flop_counter_test
