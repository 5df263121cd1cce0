// SPDX-License-Identifier: Apache-2.0
// Wrong input to an update is an error that says what was found.

#include "runtime/kernels/adamw_reference.h"
#include "support/expect_error.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cuda_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::runtime::adamw_errors_test {

namespace {

using ::testing::HasSubstr;

class AdamWErrors : public ::testing::Test {
 protected:
  AdamWState state_{8, 0, at::kFloat};
  AdamWStep step_;
  at::Tensor low_;

  /// The message of the error that the update throws.
  std::string message() {
    return error_of([&] { state_.update(step_, low_); });
  }
};

} // namespace

TEST_F(AdamWErrors, Shape) {
  state_.grad = at::zeros({7});
  EXPECT_THAT(message(), HasSubstr("grad has shape [7]"));
}

TEST_F(AdamWErrors, NotFlat) {
  state_ = state_.map([](const at::Tensor& t) { return t.view({2, 4}); });
  EXPECT_THAT(message(), HasSubstr("master has shape [2, 4]"));
}

TEST_F(AdamWErrors, Dtype) {
  state_.exp_avg = state_.exp_avg.to(at::kDouble);
  EXPECT_THAT(message(), HasSubstr("exp_avg is Double, but master is Float"));
}

TEST_F(AdamWErrors, LowPrecisionMaster) {
  state_ = state_.to(at::kBFloat16);
  EXPECT_THAT(message(), HasSubstr("master is BFloat16"));
}

TEST_F(AdamWErrors, NotContiguous) {
  state_.exp_avg_sq = at::zeros({16}).slice(0, 0, 16, 2);
  EXPECT_THAT(message(), HasSubstr("exp_avg_sq is not contiguous"));
}

TEST_F(AdamWErrors, Undefined) {
  state_.grad = at::Tensor();
  EXPECT_THAT(message(), HasSubstr("grad is undefined"));
  state_.master = at::Tensor();
  EXPECT_THAT(message(), HasSubstr("master is undefined"));
}

TEST_F(AdamWErrors, Device) {
  state_.grad = state_.grad.to(at::kMeta);
  EXPECT_THAT(message(), HasSubstr("grad is on meta, but master is on cpu"));
  state_ = state_.map([](const at::Tensor& t) { return t.to(at::kMeta); });
  EXPECT_THAT(message(), HasSubstr("master is on meta"));
}

TEST_F(AdamWErrors, LowPrecisionOutput) {
  low_ = at::zeros({8}, at::kFloat);
  EXPECT_THAT(message(), HasSubstr("low_precision is Float"));
  low_ = at::zeros({9}, at::kHalf);
  EXPECT_THAT(message(), HasSubstr("low_precision has shape [9]"));
}

TEST_F(AdamWErrors, Hyperparameters) {
  step_ = {.step = 0};
  EXPECT_THAT(message(), HasSubstr("step is 0"));
  step_ = {.beta1 = 1.0};
  EXPECT_THAT(message(), HasSubstr("beta1 is 1"));
  step_ = {.beta2 = -0.1};
  EXPECT_THAT(message(), HasSubstr("beta2 is -0.1"));
  step_ = {.lr = NAN};
  EXPECT_THAT(message(), HasSubstr("lr is nan"));
  step_ = {.eps = -1e-8};
  EXPECT_THAT(message(), HasSubstr("eps is -1e-08"));
  step_ = {.weight_decay = INFINITY};
  EXPECT_THAT(message(), HasSubstr("weight_decay is inf"));
}

TEST_F(AdamWErrors, NothingIsWrittenBeforeAllIsChecked) {
  const AdamWState before = state_.clone();
  low_ = at::zeros({8}, at::kFloat);
  message();
  EXPECT_TRUE(same_bits(state_.master, before.master));
  EXPECT_TRUE(same_bits(state_.exp_avg, before.exp_avg));
}

TEST_F(AdamWErrors, CudaBackendIsNotLoaded) {
  try {
    update_cuda(std::span<const AdamWShard<float>>());
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA backend is not loaded"));
  }
}

} // namespace tessera::runtime::adamw_errors_test
