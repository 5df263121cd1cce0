// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/few_rows_linear.h"

#include "tessera/runtime/kernels/isa.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::runtime::few_rows_linear_test {

TEST(FewRowsLinear, MultipliesAsLibTorchDoes) {
  if (best_isa() == Isa::kPortable) {
    GTEST_SKIP() << "needs AVX2";
  }
  const torch::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const int64_t k : {1, 7, 16, 37, 200}) {
    for (const int64_t n : {1, 3, 8, 29, 130}) {
      for (const bool has_bias : {false, true}) {
        const at::Tensor weight = torch::randn({n, k});
        const at::Tensor bias = has_bias ? torch::randn({n}) : at::Tensor();
        const at::Tensor x = torch::randn({11, k});
        ASSERT_TRUE(takes_few_rows(x, weight, bias));
        const at::Tensor all = few_rows_linear(x, weight, bias);
        const at::Tensor exact = torch::linear(
            x.to(torch::kDouble),
            weight.to(torch::kDouble),
            has_bias ? bias.to(torch::kDouble) : at::Tensor());
        // A float32 sum of k products of order 1.
        EXPECT_LT(
            (all - exact).abs().max().item<double>(),
            1e-6 * (2 + static_cast<double>(k)))
            << k << " " << n;
        for (const int64_t rows : {1, 2, 3, 4, 5, 7}) {
          EXPECT_TRUE(few_rows_linear(x.narrow(0, 0, rows), weight, bias)
                          .equal(all.narrow(0, 0, rows)))
              << rows << " rows " << k << " " << n;
        }
        std::vector<float> other(static_cast<size_t>(11 * n));
        few_rows_avx2(
            {x.const_data_ptr<float>(),
             11,
             k,
             weight.const_data_ptr<float>(),
             has_bias ? bias.const_data_ptr<float>() : nullptr,
             other.data(),
             n},
            0,
            n);
        EXPECT_TRUE(
            torch::from_blob(other.data(), {11, n}).allclose(all, 1e-5, 1e-4));
      }
    }
  }
  const at::Tensor x = torch::randn({2, 3, 16});
  const at::Tensor weight = torch::randn({5, 16});
  EXPECT_EQ(few_rows_linear(x, weight, {}).sizes(), (at::IntArrayRef{2, 3, 5}));
}

TEST(FewRowsLinear, LeavesTheRestToLibTorch) {
  const at::Tensor x = torch::randn({2, 16});
  const at::Tensor weight = torch::randn({5, 16});
  EXPECT_FALSE(takes_few_rows(x, weight, {})); // gradients
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(takes_few_rows(x, weight, {}), best_isa() != Isa::kPortable);
  EXPECT_FALSE(takes_few_rows(torch::randn({33, 16}), weight, {}));
  EXPECT_FALSE(takes_few_rows(x.to(torch::kBFloat16), weight, {}));
  EXPECT_FALSE(takes_few_rows(x, weight.t().contiguous().t(), {}));
  EXPECT_FALSE(takes_few_rows(torch::randn({2, 8}), weight, {}));
  EXPECT_FALSE(takes_few_rows(x, weight, torch::randn({4})));
  EXPECT_FALSE(takes_few_rows(torch::empty({0, 16}), weight, {}));
}

} // namespace tessera::runtime::few_rows_linear_test
