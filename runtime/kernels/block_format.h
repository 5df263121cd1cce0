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
// one whose values are all below 1e-36 is zero. The codes of nf4 number the 16
// quantiles of a normal distribution of QLoRA (arXiv:2305.14314, appendix E).
//
// [Note: compact scales] In place of a float32, a scale may be a byte: the
// smallest and the largest scale of 256 consecutive blocks, float32 both, are
// divided into 255 steps; blocks of zeros do not count, whose codes need no
// scale. What a scale then is, is rounded to the type of the
// values, so that encoding what has been decoded gives the same bits. That
// holds for int8 and fp8 too. A group with a scale that is not finite is all
// NaN.

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
  kNf4, ///< as kInt4, but codes are numbers of nf4_value()
};

/// Blocks whose compact scales belong together.
inline constexpr int64_t kScaleGroup = 256;

struct BlockFormat {
  CodeType type = CodeType::kInt8;
  int64_t block_numel = 256; ///< a power of two of at least 16
  bool compact_scales = false; ///< a byte each; for kNf4 alone

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
    return type == CodeType::kSign ? (numel + 7) / 8
           : has_nibbles()         ? (numel + 1) / 2
                                   : numel;
  }
  /// Where the limits of the groups of compact scales begin, in bytes.
  TESSERA_HOST_DEVICE int64_t limits_begin(int64_t numel) const {
    return scales_begin(numel) + aligned(blocks(numel));
  }
  /// Bytes of a part of `numel` elements.
  TESSERA_HOST_DEVICE int64_t bytes(int64_t numel) const {
    return compact_scales ? limits_begin(numel) + aligned(8 * groups(numel))
                          : scales_begin(numel) + aligned(4 * blocks(numel));
  }
  /// Elements that are encoded together: a part that begins at a multiple of
  /// them has the bytes that it has within a longer one.
  TESSERA_HOST_DEVICE int64_t unit_numel() const {
    return compact_scales ? kScaleGroup * block_numel : block_numel;
  }
  /// Whether two codes share a byte.
  TESSERA_HOST_DEVICE bool has_nibbles() const {
    return type == CodeType::kInt4 || type == CodeType::kNf4;
  }

 private:
  TESSERA_HOST_DEVICE int64_t groups(int64_t numel) const {
    return (numel + unit_numel() - 1) / unit_numel();
  }
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
         : type == CodeType::kNf4  ? 1.0f
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

/// What a code of nf4 stands for. Without an array, which CUDA would put into
/// the memory of each thread.
TESSERA_DEVICE inline float nf4_value(uint32_t code) {
  const auto of_four = [](uint32_t four, float a, float b, float c, float d) {
    return (four & 2) != 0 ? ((four & 1) != 0 ? d : c)
                           : ((four & 1) != 0 ? b : a);
  };
  switch (code / 4) {
    case 0:
      return of_four(
          code,
          -1.0f,
          -0.6961928009986877f,
          -0.5250730514526367f,
          -0.39491748809814453f);
    case 1:
      return of_four(
          code,
          -0.28444138169288635f,
          -0.18477343022823334f,
          -0.09105003625154495f,
          0.0f);
    case 2:
      return of_four(
          code,
          0.07958029955625534f,
          0.16093020141124725f,
          0.24611230194568634f,
          0.33791524171829224f);
    default:
      return of_four(
          code,
          0.44070982933044434f,
          0.5626170039176941f,
          0.7229568362236023f,
          1.0f);
  }
}

/// The code of the nearest value of nf4; half way, the smaller one's.
TESSERA_DEVICE inline uint32_t nf4_code(float value) {
  uint32_t code = 0;
#pragma GCC unroll 15
  for (uint32_t k = 0; k < 15; ++k) {
    code += value > (nf4_value(k) + nf4_value(k + 1)) / 2 ? 1u : 0u;
  }
  return code;
}

/// A byte of codes of a block that is zero.
TESSERA_DEVICE inline uint8_t zero_codes(CodeType type) {
  return type == CodeType::kNf4 ? 0x77 : 0;
}

/// The limits of a group of compact scales.
struct ScaleLimits {
  float smallest;
  float largest;
};

/// Counts a scale of the group. @param limits {infinity, 0} to begin with.
TESSERA_DEVICE inline void widen_limits(ScaleLimits& limits, float scale) {
  if (scale > 0) {
    limits.smallest = scale < limits.smallest ? scale : limits.smallest;
    limits.largest = scale > limits.largest ? scale : limits.largest;
  }
}

/// What is stored of the limits of all scales of a group.
/// @param finite whether all scales are.
TESSERA_DEVICE inline ScaleLimits stored_limits(
    ScaleLimits limits,
    bool finite) {
  const float nan = float_of(kNanBits);
  return !finite               ? ScaleLimits{nan, nan}
         : limits.largest == 0 ? ScaleLimits{0, 0}
                               : limits;
}

/// What differences to the smallest scale are multiplied by; nearest_int() of
/// that is the byte of a scale.
TESSERA_DEVICE inline float compact_inverse(ScaleLimits limits) {
  const float range = limits.largest - limits.smallest;
  return range >= 1e-36f ? 255.0f / range : 0; // 0 for NaN
}

/// The difference between neighboring scales.
TESSERA_DEVICE inline float compact_step(ScaleLimits limits) {
  return (limits.largest - limits.smallest) * (1.0f / 255);
}

/// The scale of a byte, not yet rounded to the type of the values.
/// @param above compact_step() times the byte.
TESSERA_DEVICE inline float wide_scale(
    uint8_t byte,
    ScaleLimits limits,
    float above) {
  return byte == 255 ? limits.largest : limits.smallest + above;
}

/// The value of a code of four bits.
TESSERA_DEVICE inline int32_t int4_value(uint32_t code) {
  return static_cast<int32_t>((code & 15) ^ 8) - 8;
}

} // namespace tessera::runtime
