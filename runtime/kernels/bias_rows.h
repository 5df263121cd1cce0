// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BiasRows` is the argument of the kernel that adds a bias. Plain C++: CUDA
// sources include it.

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

} // namespace tessera::runtime
