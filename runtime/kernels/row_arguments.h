// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BiasRows` is the argument of the kernel that adds a bias, `ColumnSums` of
// the one that adds up its gradient, `RowCopy` of the one that copies matrices.
// Plain C++: CUDA sources include it.

#include "tessera/runtime/kernels/pack_shard.h"

#include <cstdint>

namespace tessera::runtime {

/// x[row][i] += bias[i], rounded once to the type of both.
struct BiasRows {
  void* x; ///< [rows, features]
  const void* bias; ///< [features]
  int64_t rows;
  int64_t features;
  ElementType type; ///< not kFloat64
};

/// sums[i] = the sum over rows of x[row][i], added up in float32, in an order
/// that the sizes determine, and rounded once.
struct ColumnSums {
  const void* x; ///< [rows, features]
  float* parts; ///< [column_sum_parts(), features], overwritten
  void* sums; ///< [features]
  int64_t rows;
  int64_t features;
  ElementType type; ///< of x and sums; not kFloat64
};

/// Sums that blocks of threads add up before the last pass: so many of them
/// that all have work.
inline int64_t column_sum_parts(int64_t rows, int64_t features) {
  constexpr int64_t kBlocks = 512; // that fill an accelerator
  constexpr int64_t kColumns = 256; // of a block
  constexpr int64_t kLeastRows = 64; // of a block
  const int64_t wide = (features + kColumns - 1) / kColumns;
  const int64_t most = (rows + kLeastRows - 1) / kLeastRows;
  const int64_t parts = (kBlocks + wide - 1) / wide;
  return parts < most ? parts : most;
}

/// to[batch][row][i] = from[batch][row][i], of elements of 16 bits.
struct RowCopy {
  const void* from;
  void* to;
  int64_t rows;
  int64_t columns;
  int64_t from_stride; ///< elements from one row to the next
  int64_t to_stride;
  int64_t batches = 1;
  int64_t from_batch_stride = 0; ///< elements from one batch to the next
  int64_t to_batch_stride = 0;
};

} // namespace tessera::runtime
