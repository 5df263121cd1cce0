// SPDX-License-Identifier: Apache-2.0
// Products by way of padded copies and sums over rows, against float64, and
// biases added in place and copies of rows, with LibTorch's bits.
#include "runtime/kernels/fast_operators_cases.h"
#include "support/cuda_test.h"

namespace tessera::runtime::fast_operators_gpu_test {

namespace {

class FastOperatorsGpu : public tests::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) {
      use_fast_operators(true, tests::cuda_device().type());
    }
  }
  void TearDown() override {
    if (!IsSkipped()) {
      use_fast_operators(false, tests::cuda_device().type());
    }
  }
};

} // namespace

TEST_F(FastOperatorsGpu, MultiplyByWayOfCopies) {
  tests::fast_operators_cases::check_products(
      tests::cuda_device(), static_cast<size_t>(tests::gpu_size(4, 1)));
}

TEST_F(FastOperatorsGpu, SumOverRows) {
  tests::fast_operators_cases::check_sums(
      tests::cuda_device(), tests::gpu_size(70'001, 1031));
}

TEST_F(FastOperatorsGpu, CopyPartsOfRows) {
  tests::fast_operators_cases::check_copies(tests::cuda_device());
}

TEST_F(FastOperatorsGpu, AddBiasesInPlace) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const auto options = at::TensorOptions(tests::cuda_device()).dtype(dtype);
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {7, 64},
             {3, 5, 2056},
             {tests::gpu_size(70'001, 71), 24},
             {9, 1037},
             {1, 1},
             {2, 4096 + 8}}) {
      for (const int64_t offset : {0, 1}) {
        const int64_t features = sizes.back();
        const at::Tensor x = at::randn(sizes, options);
        const at::Tensor bias =
            at::randn({features + offset}, options).narrow(0, offset, features);
        const at::Tensor found = at::empty({x.numel() + offset}, options)
                                     .narrow(0, offset, x.numel())
                                     .view(sizes)
                                     .copy_(x);
        found.add_(bias);
        EXPECT_TRUE(found.equal(x + bias)) << dtype << ", " << sizes;
        // Other additions in place.
        for (const at::Tensor& other :
             {x, bias.view({1, features}), at::ones({}, at::kDouble)}) {
          EXPECT_TRUE(x.clone().add_(other).equal(x + other));
        }
        EXPECT_TRUE(x.clone().add_(bias, 2).equal(at::add(x, bias, 2)));
        const at::Tensor narrow = at::stack({x, x}, -1).select(-1, 1);
        EXPECT_TRUE(narrow.add_(bias).equal(x + bias));
      }
    }
  }
  const auto options = at::TensorOptions(tests::cuda_device());
  EXPECT_THROW(
      at::ones({4}, options).add_(at::ones({2, 4}, options)), c10::Error);
  // Through autograd, as torch::nn::Linear does.
  const at::Tensor weight = at::randn({16, 8}, options);
  const at::Tensor bias = at::randn({16}, options).requires_grad_();
  const at::Tensor x = at::randn({3, 5, 8}, options);
  torch::nn::functional::linear(x, weight, bias).sum().backward();
  EXPECT_TRUE(bias.grad().equal(at::full({16}, 15.0, options)));
}

} // namespace tessera::runtime::fast_operators_gpu_test
