// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/bfloat16_product.h"

#include "tessera/runtime/kernels/bfloat16_panels.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tessera::runtime {

namespace {

using Blocks = Bfloat16Blocks;

/// Memory that a thread keeps for its next product: not a tensor's, so that
/// products take no memory beside their results.
class PairBuffer {
 public:
  Bfloat16Pair* of(int64_t pairs) {
    if (pairs > pairs_) {
      const size_t line = 64;
      const size_t bytes = static_cast<size_t>(pairs) * sizeof(Bfloat16Pair);
      memory_.reset(static_cast<Bfloat16Pair*>(
          std::aligned_alloc(line, (bytes + line - 1) / line * line)));
      TORCH_CHECK_WITH(OutOfMemoryError, memory_, "products in bfloat16");
      pairs_ = pairs;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(Bfloat16Pair* memory) const {
      std::free(memory);
    }
  };
  std::unique_ptr<Bfloat16Pair, Free> memory_;
  int64_t pairs_ = 0;
};

/// `matrix`, or a copy of it of which one stride is 1.
at::Tensor with_unit_stride(const at::Tensor& matrix) {
  return matrix.stride(0) == 1 || matrix.stride(1) == 1 ? matrix
                                                        : matrix.contiguous();
}

Bfloat16Operand operand_of(const at::Tensor& matrix) {
  return {matrix.const_data_ptr<float>(), matrix.stride(0), matrix.stride(1)};
}

} // namespace

bool has_bfloat16_products() {
#if defined(__x86_64__)
  return isa_available(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void bfloat16_product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& bias,
    bool adds,
    const at::Tensor& out) {
#if defined(__x86_64__)
  const at::Tensor left = with_unit_stride(a);
  const at::Tensor right = with_unit_stride(b);
  const Bfloat16Operand left_operand = operand_of(left);
  const Bfloat16Operand right_operand = operand_of(right);
  const int64_t rows = a.size(0);
  // Equal shares of rows, in whole tiles.
  const int64_t threads = std::max(at::get_num_threads(), 1);
  const int64_t share =
      ((rows + threads - 1) / threads + Blocks::kTileRows - 1) /
      Blocks::kTileRows * Blocks::kTileRows;
  thread_local PairBuffer packed;
  Bfloat16Panels block{};
  block.data = packed.of(
      (std::min(b.size(0), Blocks::kDepth) + 1) / 2 *
      std::min(b.size(1) + Blocks::kTileColumns, Blocks::kColumns));
  for (int64_t column = 0; column < b.size(1); column += Blocks::kColumns) {
    block.column = column;
    block.columns = std::min(b.size(1) - column, Blocks::kColumns);
    for (int64_t row = 0; row < b.size(0); row += Blocks::kDepth) {
      block.row = row;
      block.depth = std::min(b.size(0) - row, Blocks::kDepth);
      parallel_for(
          0, block.count(), /*grain=*/4, [&](int64_t begin, int64_t end) {
            pack_bfloat16_panels(right_operand, block, begin, end);
          });
      const Bfloat16Result result{
          out.mutable_data_ptr<float>(),
          out.stride(0),
          row == 0 && bias.defined() ? bias.const_data_ptr<float>() : nullptr,
          adds || row > 0};
      parallel_for(0, rows, share, [&](int64_t begin, int64_t end) {
        thread_local PairBuffer rounded;
        multiply_bfloat16_rows(
            left_operand,
            block,
            result,
            begin,
            end,
            rounded.of(Blocks::kRoundedPairs));
      });
    }
  }
#else
  static_cast<void>(a);
  static_cast<void>(b);
  static_cast<void>(bias);
  static_cast<void>(adds);
  static_cast<void>(out);
#endif
}

} // namespace tessera::runtime
