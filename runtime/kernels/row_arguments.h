// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BiasRows` is the argument of the kernel that adds a bias, `RowCopy` that of
// the one that copies matrices. Plain C++: CUDA sources include it.

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

/// to[row][i] = from[row][i], of elements of 16 bits.
struct RowCopy {
  const void* from;
  void* to;
  int64_t rows;
  int64_t columns;
  int64_t from_stride; ///< elements from one row to the next
  int64_t to_stride;
};

} // namespace tessera::runtime
