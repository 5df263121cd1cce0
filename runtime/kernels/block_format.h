// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BlockFormat` says how flat tensors are sent in fewer bits: in blocks of
// elements with a scale each. Plain C++: CUDA sources include it.
//
// [Note: block format] A part of n elements is n codes, then a float32 scale
// per block; both begin at multiples of 16 bytes. A value is code * scale. The
// scale maps the largest magnitude of the block to the largest code, so that
// the error of an element is at most 1/254 (int8) or 1/14 (int4) of it, and in
// fp8 1/16 of the element itself. The scale of signs is the mean magnitude of
// the values that are not zero. A block with an infinity or a NaN is all NaN;
// one whose values are all below 1e-36 is zero.

#include "tessera/runtime/core/device_function.h"
#include "tessera/runtime/kernels/pack_shard.h"

#include <cstdint>
#include <cstring>

namespace tessera::runtime {

enum class CodeType : int32_t {
  kInt8,
  kInt4, ///< two to a byte, the first one in the low bits
  kFp8, ///< e4m3, without infinities (arXiv:2209.05433)
  kSign, ///< eight to a byte, the first one in the lowest bit; 1: negative
};

struct BlockFormat {
  CodeType type = CodeType::kInt8;
  int64_t block_numel = 256; ///< a power of two of at least 16

  bool operator==(const BlockFormat&) const = default;

  TESSERA_HOST_DEVICE int64_t blocks(int64_t numel) const {
    return (numel + block_numel - 1) / block_numel;
  }
  /// Where the scales of a part of `numel` elements begin, in bytes.
  TESSERA_HOST_DEVICE int64_t scales_begin(int64_t numel) const {
    return aligned(code_bytes(numel));
  }
  /// Bytes of the codes of `numel` elements.
  TESSERA_HOST_DEVICE int64_t code_bytes(int64_t numel) const {
    return type == CodeType::kSign   ? (numel + 7) / 8
           : type == CodeType::kInt4 ? (numel + 1) / 2
                                     : numel;
  }
  /// Bytes of a part of `numel` elements.
  TESSERA_HOST_DEVICE int64_t bytes(int64_t numel) const {
    return scales_begin(numel) + aligned(4 * blocks(numel));
  }

 private:
  TESSERA_HOST_DEVICE static int64_t aligned(int64_t bytes) {
    return (bytes + 15) / 16 * 16;
  }
};

/// What a kernel does with `parts` equal parts, one after another.
enum class BlockWork : int32_t {
  kEncode, ///< values to wire
  kDecode, ///< wire to values
  kSum, ///< values[i] = factor * sum over the parts of their value i
};

/// The argument of a kernel.
struct BlockArrays {
  BlockWork work;
  BlockFormat format;
  ElementType type; ///< of the values; not kFloat64
  void* values; ///< [parts, numel]; [numel] for kSum
  uint8_t* wire; ///< [parts, format.bytes(numel)]
  int64_t numel;
  int64_t parts;
  float factor; ///< for kSum
};

// The arithmetic of all kernels. What is multiplied before or after is rounded
// once, without fused multiply-adds: all devices give the same bits.

TESSERA_DEVICE inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TESSERA_DEVICE inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

TESSERA_DEVICE inline float largest_code(CodeType type) {
  return type == CodeType::kInt8   ? 127.0f
         : type == CodeType::kInt4 ? 7.0f
                                   : 448.0f;
}

/// Partial sums of magnitudes: element i is added to sum i % kSignLanes, and
/// the upper half of the sums to the lower one until one is left.
inline constexpr int kSignLanes = 128;

/// The numbers of a block.
struct BlockScale {
  float scale; ///< is sent
  float inverse; ///< values are multiplied by it; 0: all codes are 0
};

inline constexpr uint32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kNanBits = 0x7fc00000;

/// @param largest bits of the largest magnitude; those of an infinity or above
///   if some value is not finite.
TESSERA_DEVICE inline BlockScale block_scale(CodeType type, uint32_t largest) {
  if (largest >= kInfinityBits) {
    return {float_of(kNanBits), 0};
  }
  const float magnitude = float_of(largest);
  if (magnitude < 1e-36f) { // its inverse may be infinite
    return {0, 0};
  }
  return {magnitude / largest_code(type), largest_code(type) / magnitude};
}

/// The scale of a block of signs. @param largest as above.
/// @param count of values that are not zero.
TESSERA_DEVICE inline float sign_scale(
    uint32_t largest,
    float sum,
    int32_t count) {
  if (largest >= kInfinityBits) {
    return float_of(kNanBits);
  }
  return float_of(largest) < 1e-36f ? 0 : sum / static_cast<float>(count);
}

/// Rounds to the nearest integer, ties to even. @param value at most 2^22.
TESSERA_DEVICE inline int32_t nearest_int(float value) {
  constexpr float kOneAndAHalfTimes2To23 = 12582912.0f;
  return static_cast<int32_t>(
      (value + kOneAndAHalfTimes2To23) - kOneAndAHalfTimes2To23);
}

/// Rounds to the nearest e4m3 number, ties to even. @param value at most 464.
TESSERA_DEVICE inline uint8_t fp8_code(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below 2^-6 the numbers are multiples of 2^-9: adding 2^14, whose last bit
  // that is, rounds to them.
  const uint32_t small = bits_of(float_of(magnitude) + 16384.0f) - 0x46800000;
  const uint32_t odd = (magnitude >> 20) & 1;
  const uint32_t normal = (magnitude - (120u << 23) + 0x7ffff + odd) >> 20;
  const uint32_t code = magnitude < (121u << 23) ? small : normal;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80));
}

TESSERA_DEVICE inline float fp8_value(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float small =
      static_cast<float>(static_cast<int32_t>(magnitude)) * (1.0f / 512);
  const float normal = float_of((magnitude << 20) + (120u << 23));
  const float value = magnitude < 8 ? small : normal;
  return float_of(bits_of(value) | (uint32_t{code} & 0x80) << 24);
}

/// The value of a code of four bits.
TESSERA_DEVICE inline int32_t int4_value(uint32_t code) {
  return static_cast<int32_t>((code & 15) ^ 8) - 8;
}

} // namespace tessera::runtime
