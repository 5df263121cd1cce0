// SPDX-License-Identifier: Apache-2.0
#pragma once
// `widen_word()` converts pairs of 16-bit elements that are in registers as
// words of 32 bits.

#include "tessera/runtime/kernels/element_pack.cuh"

namespace tessera::runtime {

namespace {

/// Two elements by their bits: the compiler gives a register to each 16-bit
/// number that it takes out of a word.
template <typename T>
__device__ void widen_word(uint32_t word, float& low, float& high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
  } else {
    low = widen(__ushort_as_half(static_cast<uint16_t>(word)));
    high = widen(__ushort_as_half(static_cast<uint16_t>(word >> 16)));
  }
}

} // namespace

} // namespace tessera::runtime
