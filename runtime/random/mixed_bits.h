// SPDX-License-Identifier: Apache-2.0
#pragma once
// `mix_bits()` and `split_mix()` are hashes of numbers, the same on every
// machine. Seeds and orders are derived by them.

#include <cstdint>

namespace tessera::runtime {

/// The finalizer of SplitMix64 (doi:10.1145/2714064.2660195): a bijection;
/// every bit of the result depends on every bit of x. 0 stays 0.
constexpr uint64_t mix_bits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The output function of SplitMix64: a bijection whose values pass for random
/// ones, also of neighboring numbers.
constexpr uint64_t split_mix(uint64_t number) {
  return mix_bits(number + 0x9e3779b97f4a7c15);
}

} // namespace tessera::runtime
