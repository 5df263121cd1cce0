// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Bfloat16Panels` is a block of a matrix, rounded and laid out for products in
// bfloat16; with the loops over them, which include no LibTorch.

#include <cstdint>

namespace tessera::runtime {

/// [Note: products in bfloat16] Blocks of b, kDepth rows of kColumns columns,
/// are rounded and laid out in panels for all threads. Each thread then rounds
/// kRows rows of a at a time and adds up tiles of kTileRows x kTileColumns in
/// registers. What a thread reads again and again fits its caches: a panel the
/// first one, its rows of a the second one, the block of b the shared one.
///
/// An element of the result is a sum in the same order whatever the other rows
/// and columns, the strides, and the number of threads.
struct Bfloat16Blocks {
  static constexpr int64_t kDepth = 1024;
  static constexpr int64_t kColumns = 1536; ///< a multiple of kTileColumns
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kTileRows = 8;
  static constexpr int64_t kTileColumns = 48;
  /// From a rounded row of a to the next: a cache line more than it has, so
  /// that rows do not meet in the same lines of a cache.
  static constexpr int64_t kRoundedStride = kDepth / 2 + 16;
  static constexpr int64_t kRoundedPairs = kRows * kRoundedStride;
};

/// A matrix of which one stride is 1.
struct Bfloat16Operand {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

/// Two neighbours along k, the first one in the lower half.
using Bfloat16Pair = uint32_t;

/// Rows [row, row + depth) of columns [column, column + columns), as panels of
/// kTileColumns columns each; the last one has a multiple of 16. `data` is
/// aligned to 64 bytes.
struct Bfloat16Panels {
  int64_t row;
  int64_t depth;
  int64_t column;
  int64_t columns;
  Bfloat16Pair* data;

  /// Of a column; the second element of the last one is 0 where depth is odd.
  int64_t pairs() const {
    return (depth + 1) / 2;
  }
  int64_t count() const {
    return (columns + Bfloat16Blocks::kTileColumns - 1) /
           Bfloat16Blocks::kTileColumns;
  }
  Bfloat16Pair* panel(int64_t number) const {
    return data + number * Bfloat16Blocks::kTileColumns * pairs();
  }
};

/// Rounds panels [begin, end) of `block` of b.
void pack_bfloat16_panels(
    const Bfloat16Operand& b,
    const Bfloat16Panels& block,
    int64_t begin,
    int64_t end);

/// Where the product goes.
struct Bfloat16Result {
  float* data; ///< of element (0, 0)
  int64_t row_stride;
  const float* bias; ///< of column 0, or null; only without `adds`
  bool adds;
};

/// Rows [begin, end) of the product of a's columns [row, row + depth) and the
/// packed block.
/// @param rounded memory of kRoundedPairs, aligned to 64 bytes.
void multiply_bfloat16_rows(
    const Bfloat16Operand& a,
    const Bfloat16Panels& block,
    const Bfloat16Result& result,
    int64_t begin,
    int64_t end,
    Bfloat16Pair* rounded);

} // namespace tessera::runtime
