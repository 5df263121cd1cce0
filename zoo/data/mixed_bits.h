// SPDX-License-Identifier: Apache-2.0
#pragma once
// mixed_bits() is a hash of numbers, the same on every machine.

#include <cstdint>

namespace tessera::zoo {

/// The output function of SplitMix64 (doi:10.1145/2714064.2660195): a bijection
/// whose values pass for random ones.
inline uint64_t mixed_bits(uint64_t number) {
  uint64_t z = number + 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

} // namespace tessera::zoo
