// SPDX-License-Identifier: Apache-2.0
// Which matrices are copied for a product, and products by way of copies, on
// the CPU.
#include "runtime/kernels/fast_operators_cases.h"
#include "support/ranks.h"

namespace tessera::runtime::fast_operators_test {

namespace {

namespace cases = tests::fast_operators_cases;

ProductPadding padding(
    int64_t m,
    int64_t k,
    int64_t n,
    at::ScalarType dtype = at::kBFloat16) {
  return padding_of(at::empty({m, k}, dtype), at::empty({k, n}, dtype));
}

} // namespace

TEST(FastOperators, CopyWhatIsNotAlignedAndWorthIt) {
  EXPECT_EQ(padding(1024, 1024, 1024), ProductPadding());
  EXPECT_EQ(
      padding(1024, 1024, 1025),
      (ProductPadding{.a = false, .b = true, .product = true}));
  EXPECT_EQ(
      padding(1024, 1025, 1024),
      (ProductPadding{.a = true, .b = false, .product = false}));
  // Few multiplications; few for each element of the copy; not of 16 bits.
  EXPECT_EQ(padding(512, 512, 513), ProductPadding());
  EXPECT_EQ(
      padding(255, 8192, 1025),
      (ProductPadding{.a = false, .b = false, .product = true}));
  EXPECT_EQ(
      padding(8192, 255, 1025),
      (ProductPadding{.a = true, .b = true, .product = false}));
  EXPECT_EQ(padding(1024, 1024, 1025, at::kFloat), ProductPadding());
  // An odd weight of a linear layer: the rows of its transposed are even.
  const auto x = at::empty({1024, 1024}, at::kHalf);
  const auto weight = at::empty({1025, 1024}, at::kHalf);
  EXPECT_EQ(
      padding_of(x, weight.t()),
      (ProductPadding{.a = false, .b = false, .product = true}));
  // Rows that begin between.
  EXPECT_EQ(
      padding_of(
          cases::matrix(1024, 1024, at::kHalf, false, 1),
          at::empty({1024, 1024}, at::kHalf)),
      (ProductPadding{.a = true, .b = false, .product = false}));
  // LibTorch copies such ones itself, or throws.
  EXPECT_EQ(
      padding_of(at::empty({1024, 1024, 2}, at::kHalf).select(2, 1), x),
      ProductPadding());
  EXPECT_EQ(
      padding_of(x, at::empty({1025, 1024}, at::kHalf)), ProductPadding());
  EXPECT_EQ(
      padding_of(x, at::empty({1024, 1025}, at::kBFloat16)), ProductPadding());
}

TEST(FastOperators, TakeTheMemoryThatDryRunsCount) {
  const auto memory = padded_memory(
      at::empty({1024, 1024}, at::kHalf), at::empty({1024, 1025}, at::kHalf));
  ASSERT_EQ(memory.size(), 2);
  for (const at::Tensor& copy : memory) {
    EXPECT_EQ(copy.storage().nbytes(), 1024 * 1032 * 2);
    EXPECT_EQ(copy.sizes(), at::IntArrayRef({1024, 1025}));
  }
}

// In a process of its own, for the operators are those of the process.
TEST(FastOperators, MultiplyByWayOfCopies) {
  tests::run_ranks(1, [](World&) {
    use_fast_operators(true, at::kCPU);
    cases::check_products(at::kCPU);
    // The errors are LibTorch's.
    EXPECT_THROW(at::ones({2, 3}).mm(at::ones({2, 3})), c10::Error);
    use_fast_operators(false, at::kCPU);
    EXPECT_FALSE(uses_fast_operators());
    const auto a = cases::matrix(512, 2048, at::kBFloat16);
    const auto b = cases::matrix(2048, 1025, at::kBFloat16);
    at::Tensor expected = at::empty({0}, at::kBFloat16);
    at::mm_out(expected, a, b);
    EXPECT_TRUE(a.mm(b).equal(expected));
  });
}

} // namespace tessera::runtime::fast_operators_test
