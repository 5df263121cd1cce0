// SPDX-License-Identifier: Apache-2.0
#pragma once
// `size_of()` and `bytes_of()` are what elements of a type take of memory.

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace tessera::runtime {

/// The bytes of one element.
inline int64_t size_of(at::ScalarType dtype) {
  return static_cast<int64_t>(c10::elementSize(dtype));
}

/// The bytes of `numel` elements without gaps.
inline int64_t bytes_of(int64_t numel, at::ScalarType dtype) {
  return numel * size_of(dtype);
}

} // namespace tessera::runtime
