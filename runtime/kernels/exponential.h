// SPDX-License-Identifier: Apache-2.0
#pragma once
// `exponential()` is exp(x) of vectors of floats, for x <= 0: within 2 units in
// the last place, 0 from -104 on, NaN for NaN. Only the per-ISA sources include
// this, see vec_loop.h.
//
// With n = round(x / log 2) and r = x - n log 2, e^x = 2^n e^r, and e^r is the
// polynomial of Cephes' expf().

namespace tessera::runtime {

namespace {

constexpr float kLog2E = 1.44269504088896341F;
constexpr float kLog2High = 0.693359375F; // few bits: n times it is exact
constexpr float kLog2Low = -2.12194440e-4F;
constexpr float kLeastExponent = -104; // half of the smallest number is larger

/// e^r, |r| <= log 2 / 2.
template <typename Vec>
Vec exponential_near_zero(Vec r) {
  Vec p = 1.9875691500e-4F;
  p = fma(p, r, Vec(1.3981999507e-3F));
  p = fma(p, r, Vec(8.3334519073e-3F));
  p = fma(p, r, Vec(4.1665795894e-2F));
  p = fma(p, r, Vec(1.6666665459e-1F));
  p = fma(p, r, Vec(5.0000001201e-1F));
  return fma(p, r * r, r + Vec(1.0F));
}

/// @param n whole numbers.
template <typename Vec>
Vec exponential_of_rest(Vec x, Vec n) {
  return exponential_near_zero(
      fma(n, Vec(-kLog2Low), fma(n, Vec(-kLog2High), x)));
}

} // namespace

} // namespace tessera::runtime
