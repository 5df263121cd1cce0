// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PackShard` is the argument of a packing kernel. Plain C++: CUDA sources
// include it.

#include <cstdint>

namespace tessera::runtime {

enum class ElementType : int32_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

/// target[i] = source[i] * factor for i in [0, numel), rounded to the target's
/// type; zeros if source is null.
struct PackShard {
  const void* source;
  void* target;
  int64_t numel;
  ElementType source_type;
};

} // namespace tessera::runtime
