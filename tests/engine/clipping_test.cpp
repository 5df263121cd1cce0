// SPDX-License-Identifier: Apache-2.0
// Norms, limits and gradients from outside of backward, against plain LibTorch.
#include "engine/twin.h"
#include "support/ranks.h"

#include <cmath>
#include <limits>

namespace tessera::tests::clipping_test {

class Clipping : public ::testing::TestWithParam<int> {};

TEST_P(Clipping, GlobalNormsOfAnyOrder) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    int step = 0;
    for (const double p :
         {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
      twin.plain_backward(step, loss);
      twin.wrapped_backward(step, loss);
      const double expected =
          torch::nn::utils::clip_grad_norm_(twin.plain->parameters(), 1e-2, p);
      const double norm = twin.engine.clip_grad_norm(1e-2, p);
      EXPECT_NEAR(norm, expected, 1e-9 * expected) << "p = " << p;
      twin.expect_same_gradients("p = " + std::to_string(p));
      twin.step();
      ++step;
    }
    twin.expect_same_parameters();
  });
}

TEST_P(Clipping, ClippedGradientsAndLaterOnesAdd) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    twin.plain_backward(0, loss);
    twin.wrapped_backward(0, loss);
    torch::nn::utils::clip_grad_norm_(twin.plain->parameters(), 1e-2);
    twin.engine.clip_grad_norm(1e-2);
    twin.plain_backward(1, loss);
    twin.wrapped_backward(1, loss);
    twin.expect_same_gradients();
    twin.step();
    twin.expect_same_parameters();
  });
}

TEST_P(Clipping, RanksAgreeOnGradientsOncePerStep) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    for (int step = 0; step < 3; ++step) {
      const auto agreements = [&] {
        return twin.engine.stats().paging.gradient_agreements;
      };
      const int64_t before = agreements();
      twin.wrapped_backward(step, [](StackImpl& net, const at::Tensor& x) {
        return net.forward(x).square().mean();
      });
      twin.engine.clip_grad_norm(1e-2);
      twin.engine.grad_norm();
      twin.engine.step();
      EXPECT_EQ(agreements(), before + 1);
    }
  });
}

TEST_P(Clipping, AGradientThatOneRankSetsAfterwardsCounts) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.first->forward(x).square().mean();
    };
    twin.plain_backward(0, loss);
    twin.wrapped_backward(0, loss);
    torch::nn::utils::clip_grad_norm_(twin.plain->parameters(), 1e-2);
    twin.engine.clip_grad_norm(1e-2);
    const auto& unused = twin.plain->last->weight;
    unused.mutable_grad() = at::ones_like(unused) / world.size();
    if (world.rank() + 1 == world.size()) {
      twin.wrapped->last->weight.mutable_grad() = at::ones_like(unused);
    }
    twin.step();
    twin.expect_same_parameters();
  });
}

TEST_P(Clipping, ByValue) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    twin.plain_backward(0, loss);
    twin.wrapped_backward(0, loss);
    torch::nn::utils::clip_grad_value_(twin.plain->parameters(), 1e-3);
    twin.engine.clip_grad_value(1e-3);
    twin.expect_same_gradients();
    twin.step();
    twin.expect_same_parameters();
  });
}

// autograd::grad bypasses accumulation: what it returns is this rank's.
TEST_P(Clipping, ReduceAddsAGradientFromElsewhere) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const auto loss = [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean();
    };
    const auto& weight = twin.wrapped->last->weight;
    const auto gradient = torch::autograd::grad(
        {loss(*twin.wrapped, batch_of(0, twin.rank()))}, {weight})[0];
    twin.engine.reduce(weight, gradient);
    for (int r = 0; r < world.size(); ++r) {
      const auto& plain_weight = twin.plain->last->weight;
      const auto local = torch::autograd::grad(
                             {loss(*twin.plain, batch_of(0, r)) / world.size()},
                             {plain_weight})[0]
                             .clone();
      at::Tensor& sum = plain_weight.mutable_grad();
      sum = sum.defined() ? sum + local : local;
    }
    // A backward of the same step is added to it.
    twin.plain_backward(1, loss);
    twin.wrapped_backward(1, loss);
    twin.expect_same_gradients();
    twin.step();
    twin.expect_same_parameters();
  });
}

TEST_P(Clipping, ANormThatIsNotFiniteIsReported) {
  run_ranks(GetParam(), [](World& world) {
    Twin<StackImpl> twin;
    const double bad = world.rank() + 1 == world.size()
                           ? std::numeric_limits<double>::quiet_NaN()
                           : 1.0;
    twin.wrapped_backward(0, [&](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean() * bad;
    });
    EXPECT_TRUE(std::isnan(twin.engine.clip_grad_norm(1)));
    EXPECT_TRUE(std::isnan(twin.engine.clip_grad_norm(
        1, std::numeric_limits<double>::infinity())));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Clipping, ::testing::Values(1, 2, 3));

} // namespace tessera::tests::clipping_test
