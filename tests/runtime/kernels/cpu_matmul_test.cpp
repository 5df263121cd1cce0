// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/cpu_matmul.h"

#include "support/expect_error.h"
#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::runtime::cpu_matmul_test {

namespace {

/// LibTorch's own again at the end of a test.
class CpuMatmulTest : public ::testing::Test {
 protected:
  void TearDown() override {
    set_cpu_matmul(CpuMatmul::kLibTorch);
  }
};

/// Largest difference, in units of eps * k. One after the other, k terms of
/// size 1 make sums that grow as a random walk, to sqrt(k), and so do their
/// independent rounding errors: eps * k / 5 on average, five times that at
/// most.
double error_of(const at::Tensor& got, const at::Tensor& exact, int64_t k) {
  return (got.to(torch::kDouble) - exact).abs().max().item<double>() /
         (std::numeric_limits<float>::epsilon() * static_cast<double>(k));
}

struct Product {
  at::Tensor a, b, bias;
};

Product product(int64_t m, int64_t k, int64_t n) {
  torch::manual_seed(m * k + n);
  return {torch::randn({m, k}), torch::randn({k, n}), torch::randn({n})};
}

} // namespace

TEST_F(CpuMatmulTest, IsAsAccurate) {
  // Odd sizes, transposed and strided operands.
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {64, 128, 96}, {67, 131, 101}, {1, 4096, 333}, {513, 77, 65}}) {
    const auto [a, b, bias] = product(m, k, n);
    const at::Tensor exact = a.to(torch::kDouble).mm(b.to(torch::kDouble));
    const at::Tensor wide = torch::randn({m, 2 * k});
    wide.narrow(1, 3, k).copy_(a);
    for (const at::Tensor& left :
         {a, a.t().contiguous().t(), wide.narrow(1, 3, k)}) {
      for (const at::Tensor& right : {b, b.t().contiguous().t()}) {
        ASSERT_EQ(set_cpu_matmul(CpuMatmul::kOneDnn), CpuMatmul::kOneDnn);
        const at::Tensor plain = left.mm(right);
        const at::Tensor with_bias = torch::addmm(bias, left, right);
        EXPECT_TRUE(plain.is_contiguous());
        const at::Tensor out = torch::empty({n, m}).t();
        torch::mm_out(const_cast<at::Tensor&>(out), left, right);
        EXPECT_TRUE(out.equal(plain));
        const at::Tensor sum = torch::ones({m, n});
        sum.addmm_(left, right);
        EXPECT_LT(error_of(sum, exact + 1, k), 2);
        EXPECT_LT(error_of(plain, exact, k), 2);
        EXPECT_LT(error_of(with_bias, exact + bias.to(torch::kDouble), k), 2);
      }
    }
  }
}

// As the gradient of logits is for that of their weight.
TEST_F(CpuMatmulTest, ALargeTransposedOperandIsNotCopied) {
  install_cpu_memory_counter();
  const auto [transposed, b, bias] = product(256, 32771, 256);
  const at::Tensor a = transposed.t();
  const at::Tensor exact =
      a.to(torch::kDouble).mm(b.narrow(0, 0, 256).to(torch::kDouble));
  set_cpu_matmul(CpuMatmul::kOneDnn);
  const int64_t before = cpu_bytes_live();
  reset_cpu_bytes_peak();
  const at::Tensor got = a.mm(b.narrow(0, 0, 256));
  const int64_t operand = a.numel() * 4;
  EXPECT_LT(
      cpu_bytes_peak() - before - static_cast<int64_t>(got.nbytes()),
      operand / 4);
  EXPECT_LT(error_of(got, exact, 256), 3); // the largest of 8 million
}

TEST_F(CpuMatmulTest, TheOneInUseIsAnother) {
  const auto [a, b, bias] = product(257, 771, 129);
  const at::Tensor libtorch = a.mm(b);
  set_cpu_matmul(CpuMatmul::kOneDnn);
  EXPECT_EQ(cpu_matmul(), CpuMatmul::kOneDnn);
  const at::Tensor onednn = a.mm(b);
  set_cpu_matmul(CpuMatmul::kLibTorch);
  EXPECT_EQ(cpu_matmul(), CpuMatmul::kLibTorch);
  EXPECT_TRUE(a.mm(b).equal(libtorch)) << "LibTorch's own bits are back";
  if (set_cpu_matmul(CpuMatmul::kAuto) == CpuMatmul::kOneDnn) {
    // Where MKL has the same instructions they may agree by chance.
    EXPECT_FALSE(onednn.equal(libtorch));
    EXPECT_TRUE(a.mm(b).equal(onednn));
  }
}

TEST_F(CpuMatmulTest, BackwardGoesThroughIt) {
  torch::nn::Linear layer(771, 129);
  const at::Tensor x = torch::randn({2, 64, 771}, torch::requires_grad());
  const auto gradients = [&] {
    layer->zero_grad();
    x.mutable_grad() = at::Tensor();
    layer(x).square().sum().backward();
    return std::vector<at::Tensor>{
        x.grad().clone(), layer->weight.grad().clone()};
  };
  const auto libtorch = gradients();
  set_cpu_matmul(CpuMatmul::kOneDnn);
  const auto onednn = gradients();
  for (size_t i = 0; i < libtorch.size(); ++i) {
    EXPECT_TRUE(torch::allclose(onednn[i], libtorch[i], 1e-4, 1e-4));
  }
}

TEST_F(CpuMatmulTest, OthersStayWithLibTorch) {
  const auto results = [] {
    const auto [a, b, bias] = product(64, 128, 96);
    std::vector<at::Tensor> all;
    all.push_back(a.to(torch::kDouble).mm(b.to(torch::kDouble)));
    all.push_back(a.to(torch::kBFloat16).mm(b.to(torch::kBFloat16)));
    all.push_back(a.narrow(0, 0, 4).mm(b)); // small
    all.push_back(torch::addmm(torch::ones({64, 96}), a, b));
    all.push_back(torch::addmm(bias, a, b, /*beta=*/0.5));
    all.push_back(torch::mm(a.to_sparse(), b));
    return all;
  };
  const auto expected = results();
  set_cpu_matmul(CpuMatmul::kOneDnn);
  const auto got = results();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(got[i].equal(expected[i])) << i;
  }
}

TEST_F(CpuMatmulTest, ErrorsAreLibTorchs) {
  set_cpu_matmul(CpuMatmul::kOneDnn);
  EXPECT_THROW(
      torch::mm(torch::ones({600, 900}), torch::ones({800, 900})), c10::Error);
  EXPECT_THROW(
      torch::addmm(
          torch::ones({7}), torch::ones({600, 900}), torch::ones({900, 800})),
      c10::Error);
}

/// Products with rounded operands, where the processor has them.
class Bfloat16MatmulTest : public CpuMatmulTest {
 protected:
  void SetUp() override {
    if (!has_bfloat16_products()) {
      GTEST_SKIP() << "this processor has no AVX512-BF16";
    }
    ASSERT_EQ(set_cpu_matmul(CpuMatmul::kBfloat16), CpuMatmul::kBfloat16);
  }

  static at::Tensor rounded(const at::Tensor& x) {
    return x.to(torch::kBFloat16).to(torch::kDouble);
  }
  /// The transpose of a transpose, and columns of a wider matrix.
  static std::vector<at::Tensor> layouts_of(const at::Tensor& x) {
    const at::Tensor wide = torch::randn({x.size(0), 2 * x.size(1)});
    wide.narrow(1, 3, x.size(1)).copy_(x);
    const at::Tensor sparse = torch::randn({x.size(0), 2 * x.size(1)});
    const at::Tensor every_second = sparse.slice(1, 0, std::nullopt, 2);
    every_second.copy_(x);
    return {
        x, x.t().contiguous().t(), wide.narrow(1, 3, x.size(1)), every_second};
  }
};

TEST(CpuMatmulErrors, AProcessorWithoutBfloat16IsTold) {
  if (!has_bfloat16_products()) {
    expect_error(
        [] { set_cpu_matmul(CpuMatmul::kBfloat16); },
        {"AVX512-BF16", "Use \"auto\""});
    EXPECT_NE(cpu_matmul(), CpuMatmul::kBfloat16);
  } else {
    EXPECT_EQ(set_cpu_matmul(CpuMatmul::kBfloat16), CpuMatmul::kBfloat16);
    EXPECT_STREQ(name_of(cpu_matmul()), "bfloat16");
    set_cpu_matmul(CpuMatmul::kLibTorch);
  }
}

// Sizes that fill no tile, no panel and no block, or several of them.
TEST_F(Bfloat16MatmulTest, SumsProductsOfRoundedOperandsInFloat32) {
  for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
           {64, 128, 96},
           {67, 131, 101},
           {33, 2085, 129},
           {37, 33, 3090},
           {513, 79, 65}}) {
    const auto [a, b, bias] = product(m, k, n);
    const at::Tensor exact = rounded(a).mm(rounded(b));
    for (const at::Tensor& left : layouts_of(a)) {
      for (const at::Tensor& right : layouts_of(b)) {
        const at::Tensor plain = left.mm(right);
        EXPECT_LT(error_of(plain, exact, k), 2);
        const at::Tensor with_bias = torch::addmm(bias, left, right);
        EXPECT_LT(error_of(with_bias, exact + bias.to(torch::kDouble), k), 2);
        at::Tensor out = torch::empty({n, m}).t();
        torch::mm_out(out, left, right);
        EXPECT_TRUE(out.equal(plain));
        out = torch::full({m, n}, std::nanf(""));
        torch::mm_out(out, left, right);
        EXPECT_TRUE(out.equal(plain));
        const at::Tensor sum = torch::ones({m, n});
        sum.addmm_(left, right);
        EXPECT_LT(error_of(sum, exact + 1, k), 2);
      }
    }
  }
}

TEST_F(Bfloat16MatmulTest, AResultMayBeItsOperand) {
  const auto [a, b, bias] = product(96, 96, 96);
  const at::Tensor expected = a.mm(b);
  at::Tensor out = a.clone();
  torch::mm_out(out, out, b);
  EXPECT_TRUE(out.equal(expected));
  const at::Tensor sum = a.clone();
  sum.addmm_(sum, b);
  EXPECT_TRUE(torch::allclose(sum, a + expected, 1e-5, 1e-5));
}

TEST_F(Bfloat16MatmulTest, BitsDependOnNoOtherRowsColumnsAndThreads) {
  const auto [a, b, bias] = product(203, 1500, 1700);
  const at::Tensor all = torch::addmm(bias, a, b);
  EXPECT_TRUE(torch::addmm(
                  bias.narrow(0, 1600, 50).contiguous(),
                  a.narrow(0, 100, 37),
                  b.narrow(1, 1600, 50))
                  .equal(all.narrow(0, 100, 37).narrow(1, 1600, 50)));
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 3 : 1);
  EXPECT_TRUE(torch::addmm(bias, a, b).equal(all));
  at::set_num_threads(threads);
}

TEST_F(Bfloat16MatmulTest, ValuesThatAreNotFiniteStaySo) {
  auto [a, b, bias] = product(64, 64, 64);
  a[3][5] = std::numeric_limits<float>::infinity();
  a[9][7] = std::nanf("");
  const at::Tensor out = a.mm(b);
  EXPECT_TRUE(out[3].isinf().all().item<bool>());
  EXPECT_TRUE(out[9].isnan().all().item<bool>());
  EXPECT_EQ(out.isfinite().sum().item<int64_t>(), 62 * 64);
}

TEST_F(Bfloat16MatmulTest, FewRowsAndOtherTypesAreNotRounded) {
  const auto [a, b, bias] = product(512, 640, 512);
  const at::Tensor exact = a.to(torch::kDouble).mm(b.to(torch::kDouble));
  EXPECT_TRUE(a.to(torch::kDouble).mm(b.to(torch::kDouble)).equal(exact));
  EXPECT_LT(error_of(a.narrow(0, 0, 31).mm(b), exact.narrow(0, 0, 31), 640), 2);
  EXPECT_LT(error_of(a.mm(b.narrow(1, 0, 31)), exact.narrow(1, 0, 31), 640), 2);
  EXPECT_GT(error_of(a.mm(b), exact, 640), 2) << "these are";
}

TEST_F(Bfloat16MatmulTest, TakesNoMemoryBesideTheResult) {
  install_cpu_memory_counter();
  const auto [a, b, bias] = product(256, 3000, 512);
  const int64_t before = cpu_bytes_live();
  reset_cpu_bytes_peak();
  const at::Tensor got = a.mm(b);
  EXPECT_LT(
      cpu_bytes_peak() - before, static_cast<int64_t>(got.nbytes()) + 4096);
}

} // namespace tessera::runtime::cpu_matmul_test
