// SPDX-License-Identifier: Apache-2.0
#pragma once
// `mix_bits()`, `split_mix()` and `keyed_bits()` are hashes of numbers, the
// same on every machine. Seeds and orders are derived by them.

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

/// 32 bits that pass for random ones of each number under a key:
/// multiplications and shifts (the constants of lowbias32,
/// github.com/skeeto/hash-prospector) with half of the key before each. For
/// many numbers of few keys, which should be random ones themselves.
[[gnu::always_inline]] constexpr uint32_t keyed_bits(
    uint64_t key,
    uint32_t number) {
  uint32_t x = number * 0x9e3779b9U + static_cast<uint32_t>(key);
  x = (x ^ (x >> 16U)) * 0x7feb352dU;
  x = ((x ^ (x >> 15U)) + static_cast<uint32_t>(key >> 32U)) * 0x846ca68bU;
  return x ^ (x >> 16U);
}

} // namespace tessera::runtime
