// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StochasticRounding` rounds to bfloat16 stochastically: up with the
// probability that makes the result unbiased. Plain C++: CUDA sources and the
// per-ISA sources include it.
//
// [Note: the noise of stochastic rounding] The noise of an element is a
// function of the seed, the array that is rounded and the number of the
// element, so the result depends neither on threads nor on the instruction set
// nor on where a shard begins. It consists of 16 bits of a 32-bit mixing
// function (two multiplications; constants from C. Wellons' search for low
// bias); rounding adds them to the 16 bits that are cut off. Elements 2^32
// apart have the same noise.

#include "tessera/runtime/core/device_function.h"
#include "tessera/runtime/random/mixed_bits.h"

#include <cstdint>

namespace tessera::runtime {

/// Rounding of bfloat16 state and of the low_precision output in an update.
struct StochasticRounding {
  /// False: to nearest, ties to even.
  bool enabled = false;
  /// Must differ for every step and every array.
  uint64_t seed = 0;
  /// Number of the run's first element.
  uint64_t first_element = 0;
};

/// The seed in the form that kernels use.
struct RoundingKey {
  bool enabled = false;
  uint32_t key0 = 0;
  uint32_t key1 = 0;
  uint32_t first = 0;

  RoundingKey() = default;
  explicit RoundingKey(const StochasticRounding& rounding)
      : enabled(rounding.enabled),
        first(static_cast<uint32_t>(rounding.first_element)) {
    // Spreads neighboring seeds over many bits.
    const uint64_t mixed = split_mix(rounding.seed);
    key0 = static_cast<uint32_t>(mixed);
    key1 = static_cast<uint32_t>(mixed >> 32);
  }
};

// Internal linkage, so that the linker does not share code between instruction
// sets.
namespace {

/// 16 random bits for element `index` of the array with the second key `key1`.
TESSERA_DEVICE inline uint32_t stochastic_noise(
    uint32_t key0,
    uint32_t key1,
    uint32_t index) {
  uint32_t x = index ^ key0;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = ((x ^ (x >> 15)) + key1) * 0x846ca68bu;
  return x >> 16;
}

/// The second key of an array that an update rounds: the low_precision output
/// is 0, state k is 1 + k.
TESSERA_DEVICE inline uint32_t second_key(const RoundingKey& key, int array) {
  return key.key1 + static_cast<uint32_t>(array) * 0x9e3779b9u;
}

} // namespace

} // namespace tessera::runtime
