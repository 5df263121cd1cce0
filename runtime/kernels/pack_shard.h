// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PackShard` is the argument of a packing kernel. Plain C++: CUDA sources
// include it.

#include <cstdint>

namespace tessera::runtime {

enum class ElementType : int32_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

/// What packing does with the values of the target.
enum class PackMode : int32_t { kCopy, kAdd };

/// For i in [0, numel), rounded once to the target's type:
///
///   kCopy: target[i] = source[i] * factor; zeros if source is null
///   kAdd:  target[i] += source[i] * factor; source is not null
struct PackShard {
  const void* source;
  void* target;
  int64_t numel;
  ElementType source_type;
};

} // namespace tessera::runtime
