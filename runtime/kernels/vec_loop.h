// SPDX-License-Identifier: Apache-2.0
#pragma once
// `for_each_vector()` and helpers loop over arrays with the vectors of an
// instruction set. Only the per-ISA sources include this; each instantiates it
// with its own vectors, so that no function compiled for one instruction set is
// shared with code that runs on any machine.
//
// A `Vec` wraps a vector register of elements of type Vec::Scalar, from which
// it converts. It has load and store (of `count` elements, by default kWidth),
// arithmetic, and loads and stores that convert from and round to bfloat16 and
// float16. Not at::vec, which rounds NaN to bfloat16 0xffff in place of 0x7fc0
// and whose headers put a static initializer (always) and some 50 functions of
// c10 and std (unoptimized) with AVX-512 into programs for any processor.

#include "tessera/runtime/kernels/low_precision.h"

#include <cstdint>

namespace tessera::runtime::detail {

// Distance in bytes by which prefetches run ahead of the loop. The hardware
// prefetchers stop at page boundaries, and there are up to twelve streams;
// about a KiB gains a few percent.
inline constexpr int64_t kPrefetchBytes = 1280;

template <typename Vec>
void prefetch(const void* address) {
  if constexpr (Vec::kWidth > 1) {
    __builtin_prefetch(static_cast<const char*>(address) + kPrefetchBytes);
  }
}

/// Calls body(i) for every full vector and body(i, count) for the rest.
template <typename Vec, typename Body>
void for_each_vector(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + Vec::kWidth <= end; i += Vec::kWidth) {
    body(i);
  }
  if (i < end) {
    body(i, end - i);
  }
}

/// Calls body with the format as a template argument.
/// @tparam kVaries false: the format is always kNone.
template <bool kVaries = true, typename Body>
auto with_format(LowPrecision format, Body body) {
  if constexpr (kVaries) {
    if (format == LowPrecision::kBFloat16) {
      return body.template operator()<LowPrecision::kBFloat16>();
    }
    if (format == LowPrecision::kFloat16) {
      return body.template operator()<LowPrecision::kFloat16>();
    }
  }
  return body.template operator()<LowPrecision::kNone>();
}

/// Address of element `i` of an array of Vec::Scalar, or of kFormat.
template <LowPrecision kFormat, typename Vec>
const void* address_as(const void* array, int64_t i) {
  if constexpr (kFormat == LowPrecision::kNone) {
    return static_cast<const typename Vec::Scalar*>(array) + i;
  } else {
    return static_cast<const uint16_t*>(array) + i;
  }
}

/// Loads elements from `i` on of an array of Vec::Scalar, or of kFormat.
template <LowPrecision kFormat, typename Vec, typename... Count>
Vec load_as(const void* array, int64_t i, Count... count) {
  if constexpr (kFormat == LowPrecision::kNone) {
    return Vec::load(
        static_cast<const typename Vec::Scalar*>(array) + i, count...);
  } else if constexpr (kFormat == LowPrecision::kBFloat16) {
    return Vec::load_bfloat16(
        static_cast<const uint16_t*>(array) + i, count...);
  } else {
    return Vec::load_float16(static_cast<const uint16_t*>(array) + i, count...);
  }
}

} // namespace tessera::runtime::detail
