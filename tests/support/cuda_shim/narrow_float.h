// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NarrowFloat` is a 16-bit type of CUDA where .cu files are compiled as C++.

#include <cmath>
#include <cstdint>

namespace tessera::tests::cuda_shim {

/// @tparam kWiden float of the bits.
/// @tparam kRound bits of a float, to nearest, ties to even.
template <float (*kWiden)(uint16_t), uint16_t (*kRound)(float)>
struct NarrowFloat {
  uint16_t bits;

  static float widened(NarrowFloat x) {
    return kWiden(x.bits);
  }
  /// Any NaN becomes the one that CUDA makes of it.
  static NarrowFloat rounded(float x) {
    return {std::isnan(x) ? uint16_t{0x7fff} : kRound(x)};
  }
  static NarrowFloat of_bits(uint16_t bits) {
    return {bits};
  }
  static uint16_t bits_of(NarrowFloat x) {
    return x.bits;
  }
};

} // namespace tessera::tests::cuda_shim
