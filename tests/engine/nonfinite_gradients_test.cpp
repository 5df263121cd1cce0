// SPDX-License-Identifier: Apache-2.0
// Steps with a gradient that is not finite, without loss scaling.
#include "engine/twin.h"
#include "support/ranks.h"

#include <limits>
#include <map>
#include <string>

namespace tessera::tests::nonfinite_gradients_test {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::map<std::string, at::Tensor> values_of(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    values[name] = v.clone();
  });
  return values;
}

/// The gradient of last.bias, alone, is not finite, on the last rank alone.
void bad_backward(Twin<StackImpl>& twin, double value) {
  twin.wrapped_backward(3, [&](StackImpl& net, const at::Tensor& x) {
    const bool is_last = world().rank() + 1 == world().size();
    return net.forward(x).square().mean() +
           (net.last->bias * (is_last ? value : 1.0)).sum();
  });
}

} // namespace

class NonfiniteGradients : public ::testing::TestWithParam<int> {};

TEST_P(NonfiniteGradients, StopWithoutAChange) {
  run_ranks(GetParam(), [](World&) {
    for (const double value :
         {std::numeric_limits<double>::quiet_NaN(), -kInfinity}) {
      for (const bool clips : {false, true}) {
        Twin<StackImpl> twin;
        twin.train(0);
        bad_backward(twin, value);
        if (clips) {
          twin.engine.clip_grad_norm(1);
        }
        try {
          twin.engine.step();
          ADD_FAILURE() << "no error";
        } catch (const NonfiniteGradientError& error) {
          EXPECT_EQ(
              error.problem(),
              "the gradient of parameter 'last.bias' is not finite in step 2");
        }
        twin.expect_same_parameters("after the error");
        twin.train(1); // the gradients are gone, and nothing is lost
        twin.expect_same_parameters("after the next step");
      }
    }
  });
}

TEST_P(NonfiniteGradients, AreSkipped) {
  run_ranks(GetParam(), [](World&) {
    EngineOptions options = group_per_layer();
    options.on_nonfinite = OnNonfinite::kSkip;
    Twin<StackImpl> twin(options);
    twin.train(0);
    bad_backward(twin, kInfinity);
    EXPECT_FALSE(twin.engine.step());
    expect_trains_like_plain(twin, 2);
  });
}

TEST_P(NonfiniteGradients, AreAppliedIfAsked) {
  run_ranks(GetParam(), [](World&) {
    EngineOptions options = group_per_layer();
    options.on_nonfinite = OnNonfinite::kApply;
    Twin<StackImpl> twin(options);
    bad_backward(twin, kInfinity);
    EXPECT_TRUE(twin.engine.step());
    EXPECT_FALSE(
        values_of(twin.engine).at("last.bias").isfinite().all().item<bool>());
  });
}

// A norm that was finite says nothing of gradients that come later.
TEST_P(NonfiniteGradients, AreFoundAfterAFiniteNorm) {
  run_ranks(GetParam(), [](World&) {
    Twin<StackImpl> twin;
    bad_backward(twin, 1);
    EXPECT_TRUE(std::isfinite(twin.engine.grad_norm()));
    bad_backward(twin, kInfinity);
    expect_throws([&] { twin.engine.step(); }, {"'last.bias'"});
    // Also if the engine does not see the call of backward().
    bad_backward(twin, 1);
    EXPECT_TRUE(std::isfinite(twin.engine.grad_norm()));
    (twin.wrapped->last->bias * kInfinity).sum().backward();
    expect_throws([&] { twin.engine.step(); }, {"'last.bias'"});
    bad_backward(twin, 1);
    EXPECT_TRUE(std::isfinite(twin.engine.grad_norm()));
    twin.engine.multiply_gradients(kInfinity);
    expect_throws([&] { twin.engine.step(); }, {"is not finite"});
    // Powers of finite gradients may be infinite.
    twin.wrapped_backward(1, [](StackImpl& net, const at::Tensor& x) {
      return net.forward(x).square().mean() * 1e60;
    });
    EXPECT_TRUE(std::isinf(twin.engine.grad_norm(8)));
    EXPECT_TRUE(twin.engine.step());
  });
}

TEST_P(NonfiniteGradients, AreFoundWithUpdatesThatOverlap) {
  run_ranks(GetParam(), [](World&) {
    for (const UpdateOverlap overlap :
         {UpdateOverlap::kOff,
          UpdateOverlap::kWait,
          UpdateOverlap::kSpeculate}) {
      EngineOptions options = group_per_layer();
      options.optimizer.overlap = overlap;
      Twin<StackImpl> twin(options);
      twin.train(0);
      bad_backward(twin, kInfinity);
      expect_throws([&] { twin.engine.step(); }, {"'last.bias'", "step 2"});
      twin.train(1);
      twin.expect_same_parameters("after the next step");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, NonfiniteGradients, ::testing::Values(1, 2));

} // namespace tessera::tests::nonfinite_gradients_test
