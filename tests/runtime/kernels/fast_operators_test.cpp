// SPDX-License-Identifier: Apache-2.0
// Which matrices are copied for a product, and products by way of copies, on
// the CPU.
#include "runtime/kernels/fast_operators_cases.h"
#include "support/ranks.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/memory/product_padding.h"

#include <string>

namespace tessera::runtime::fast_operators_test {

namespace {

namespace cases = tests::fast_operators_cases;

/// "ab of 1024 x 1032 x 1032": what is copied, a, b or the product, and the
/// sizes of the product that is computed; "" without copies.
std::string text_of(const ProductPadding& padding) {
  if (!padding.is_any()) {
    return "";
  }
  return std::string(padding.a ? "a" : "") + (padding.b ? "b" : "") +
         (padding.product ? "p" : "") +
         formatted(" of {} x {} x {}", padding.m, padding.k, padding.n);
}

std::string padding(
    int64_t m,
    int64_t k,
    int64_t n,
    at::ScalarType dtype = at::kBFloat16) {
  return text_of(
      padding_of(at::empty({m, k}, dtype), at::empty({k, n}, dtype)));
}

} // namespace

TEST(FastOperators, CopyWhatIsNotAlignedAndWorthIt) {
  EXPECT_EQ(padding(1024, 1024, 1024), "");
  EXPECT_EQ(padding(1025, 1024, 1024), "");
  EXPECT_EQ(padding(1024, 1024, 1025), "bp of 1024 x 1024 x 1032");
  EXPECT_EQ(padding(1025, 1031, 1024), "ab of 1025 x 1032 x 1024");
  // Few multiplications; few for each element of a copy; not of 16 bits.
  EXPECT_EQ(padding(512, 512, 513), "");
  EXPECT_EQ(padding(255, 8192, 1025), "");
  EXPECT_EQ(padding(8192, 255, 1025), "");
  EXPECT_EQ(padding(8192, 1025, 248), "");
  EXPECT_EQ(padding(1024, 1024, 1025, at::kFloat), "");
  // The products of a linear layer with an odd weight: forward, the gradient of
  // its input and that of its weight.
  const auto x = at::empty({1024, 1024}, at::kHalf);
  const auto weight = at::empty({1025, 1024}, at::kHalf);
  const auto gradient = at::empty({1024, 1025}, at::kHalf);
  EXPECT_EQ(text_of(padding_of(x, weight.t())), "bp of 1024 x 1024 x 1032");
  EXPECT_EQ(text_of(padding_of(gradient, weight)), "ab of 1024 x 1032 x 1024");
  EXPECT_EQ(text_of(padding_of(gradient.t(), x)), "a of 1032 x 1024 x 1024");
  // Rows that begin between.
  EXPECT_EQ(
      text_of(padding_of(cases::matrix(1024, 1024, at::kHalf, false, 1), x)),
      "a of 1024 x 1024 x 1024");
  // LibTorch copies such ones itself, or throws.
  EXPECT_EQ(
      text_of(
          padding_of(at::empty({1024, 1024, 2}, at::kHalf).select(2, 1), x)),
      "");
  EXPECT_EQ(text_of(padding_of(x, weight)), "");
  EXPECT_EQ(text_of(padding_of(x, at::empty({1024, 1025}, at::kBFloat16))), "");
}

TEST(FastOperators, TakeTheMemoryThatDryRunsCount) {
  const auto weight = at::empty({1025, 1024}, at::kHalf);
  const auto memory =
      padded_memory(at::empty({1024, 1024}, at::kHalf), weight.t());
  ASSERT_EQ(memory.size(), 2);
  EXPECT_EQ(memory[0].sizes(), at::IntArrayRef({1024, 1032}));
  EXPECT_EQ(memory[0].strides(), at::IntArrayRef({1, 1024}));
  EXPECT_EQ(memory[1].sizes(), at::IntArrayRef({1024, 1032}));
}

// In a process of its own, for the operators are those of the process.
TEST(FastOperators, MultiplyByWayOfCopies) {
  tests::run_ranks(1, [](World&) {
    use_fast_operators(true, at::kCPU);
    cases::check_products(at::kCPU, /*half_shapes=*/1);
    // The errors are LibTorch's.
    EXPECT_THROW(at::ones({2, 3}).mm(at::ones({2, 3})), c10::Error);
    use_fast_operators(false, at::kCPU);
    EXPECT_FALSE(plans_padded_products());
    const auto a = cases::matrix(512, 2048, at::kBFloat16);
    const auto b = cases::matrix(2048, 1025, at::kBFloat16);
    at::Tensor expected = at::empty({0}, at::kBFloat16);
    at::mm_out(expected, a, b);
    EXPECT_TRUE(a.mm(b).equal(expected));
  });
}

} // namespace tessera::runtime::fast_operators_test
