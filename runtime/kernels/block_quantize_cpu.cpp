// SPDX-License-Identifier: Apache-2.0
// The block format on the CPU. Compiled with -O3, which vectorizes the loops.
// Nothing is contracted to fused multiply-adds: all instruction sets give the
// same bits.
#include "tessera/runtime/kernels/block_quantize.h"
#include "tessera/runtime/kernels/cpu_update.h"
#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/target_clones.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace tessera::runtime {

namespace {

/// Elements that are widened to float32 at a time; they stay in the first-level
/// cache.
constexpr int64_t kMostWidened = 1024;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TESSERA_CLONES uint32_t largest_bits(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, bits_of(values[i]) & 0x7fffffff);
  }
  return largest;
}

TESSERA_CLONES void encode_int8(
    const float* values,
    int64_t count,
    float inverse,
    uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<uint8_t>(nearest_int(values[i] * inverse));
  }
}

TESSERA_CLONES void encode_int4(
    const float* values,
    int64_t count,
    float inverse,
    uint8_t* codes) {
  for (int64_t i = 0; i < count / 2; ++i) {
    const auto low =
        static_cast<uint32_t>(nearest_int(values[2 * i] * inverse));
    const auto high =
        static_cast<uint32_t>(nearest_int(values[2 * i + 1] * inverse));
    codes[i] = static_cast<uint8_t>((low & 15) | (high << 4));
  }
  if (count % 2 != 0) {
    codes[count / 2] =
        static_cast<uint8_t>(nearest_int(values[count - 1] * inverse) & 15);
  }
}

TESSERA_CLONES void encode_fp8(
    const float* values,
    int64_t count,
    float inverse,
    uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = fp8_code(values[i] * inverse);
  }
}

TESSERA_CLONES void encode_nf4(
    const float* values,
    int64_t count,
    float inverse,
    uint8_t* codes) {
  for (int64_t i = 0; i < count / 2; ++i) {
    const uint32_t low = nf4_code(values[2 * i] * inverse);
    const uint32_t high = nf4_code(values[2 * i + 1] * inverse);
    codes[i] = static_cast<uint8_t>(low | (high << 4));
  }
  if (count % 2 != 0) {
    codes[count / 2] = static_cast<uint8_t>(
        nf4_code(values[count - 1] * inverse) | (nf4_code(0) << 4));
  }
}

TESSERA_CLONES void decode_int8(
    const uint8_t* codes,
    int64_t count,
    float scale,
    float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
  }
}

TESSERA_CLONES void decode_int4(
    const uint8_t* codes,
    int64_t count,
    float scale,
    float* values) {
  for (int64_t i = 0; i < count / 2; ++i) {
    values[2 * i] = static_cast<float>(int4_value(codes[i])) * scale;
    values[2 * i + 1] = static_cast<float>(int4_value(codes[i] >> 4)) * scale;
  }
  if (count % 2 != 0) {
    values[count - 1] =
        static_cast<float>(int4_value(codes[count / 2])) * scale;
  }
}

/// What the codes of a block stand for.
template <typename T>
using Nf4Table = std::array<T, 16>;

template <typename T>
void look_up_nf4(
    const uint8_t* codes,
    int64_t count,
    const Nf4Table<T>& table,
    T* values) {
  for (int64_t i = 0; i < count / 2; ++i) {
    values[2 * i] = table[codes[i] & 15];
    values[2 * i + 1] = table[codes[i] >> 4];
  }
  if (count % 2 != 0) {
    values[count - 1] = table[codes[count / 2] & 15];
  }
}

Nf4Table<float> nf4_table(float scale) {
  Nf4Table<float> table;
  for (size_t k = 0; k < table.size(); ++k) {
    table[k] = nf4_value(static_cast<uint32_t>(k)) * scale;
  }
  return table;
}

TESSERA_CLONES void decode_fp8(
    const uint8_t* codes,
    int64_t count,
    float scale,
    float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = fp8_value(codes[i]) * scale;
  }
}

TESSERA_CLONES void encode_sign(
    const float* values,
    int64_t count,
    uint8_t* codes) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint32_t code = 0;
    for (int64_t k = 0; k < 8; ++k) {
      code |= (values[i + k] < 0 ? 1u : 0u) << k;
    }
    codes[i / 8] = static_cast<uint8_t>(code);
  }
  if (i < count) {
    uint32_t code = 0;
    for (int64_t k = 0; i + k < count; ++k) {
      code |= (values[i + k] < 0 ? 1u : 0u) << k;
    }
    codes[i / 8] = static_cast<uint8_t>(code);
  }
}

TESSERA_CLONES void decode_sign(
    const uint8_t* codes,
    int64_t count,
    float scale,
    float* values) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint32_t code = codes[i / 8];
    for (int64_t k = 0; k < 8; ++k) {
      values[i + k] = float_of(bits_of(scale) ^ ((code >> k) & 1) << 31);
    }
  }
  for (; i < count; ++i) {
    values[i] = float_of(
        bits_of(scale) ^ (uint32_t{codes[i / 8]} >> (i % 8) & 1) << 31);
  }
}

/// Magnitudes of a block by lane, and how many are not zero.
struct SignSums {
  std::array<float, kSignLanes> lanes{};
  int32_t count = 0;

  float total() {
    for (int half = kSignLanes / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) {
        lanes[k] += lanes[k + half];
      }
    }
    return lanes[0];
  }
};

/// @param values of a block, from a multiple of kSignLanes on.
TESSERA_CLONES void add_magnitudes(
    const float* values,
    int64_t count,
    SignSums& sums) {
  float* lanes = sums.lanes.data();
  int64_t i = 0;
  for (; i + kSignLanes <= count; i += kSignLanes) {
    for (int64_t k = 0; k < kSignLanes; ++k) {
      lanes[k] += float_of(bits_of(values[i + k]) & 0x7fffffff);
    }
  }
  for (int64_t k = 0; i + k < count; ++k) {
    lanes[k] += float_of(bits_of(values[i + k]) & 0x7fffffff);
  }
  int32_t not_zero = 0;
  for (int64_t j = 0; j < count; ++j) {
    not_zero += values[j] != 0 ? 1 : 0;
  }
  sums.count += not_zero;
}

TESSERA_CLONES void add(const float* more, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] += more[i];
  }
}

TESSERA_CLONES void multiply(float factor, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] *= factor;
  }
}

TESSERA_CLONES void narrow_to_bfloat16(
    const float* values,
    int64_t count,
    uint16_t* narrow) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(values[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    narrow[i] = static_cast<uint16_t>(is_nan ? 0x7fc0 : rounded);
  }
}

void narrow_to_float16(const float* values, int64_t count, uint16_t* narrow) {
  for (int64_t i = 0; i < count; ++i) {
    narrow[i] = c10::Half(values[i]).x;
  }
}

void encode(
    CodeType type,
    const float* values,
    int64_t count,
    float inverse,
    uint8_t* codes) {
  switch (type) {
    case CodeType::kInt8:
      return encode_int8(values, count, inverse, codes);
    case CodeType::kInt4:
      return encode_int4(values, count, inverse, codes);
    case CodeType::kFp8:
      return encode_fp8(values, count, inverse, codes);
    case CodeType::kSign:
      return encode_sign(values, count, codes);
    case CodeType::kNf4:
      return encode_nf4(values, count, inverse, codes);
  }
}

void decode(
    CodeType type,
    const uint8_t* codes,
    int64_t count,
    float scale,
    float* values) {
  switch (type) {
    case CodeType::kInt8:
      return decode_int8(codes, count, scale, values);
    case CodeType::kInt4:
      return decode_int4(codes, count, scale, values);
    case CodeType::kFp8:
      return decode_fp8(codes, count, scale, values);
    case CodeType::kSign:
      return decode_sign(codes, count, scale, values);
    case CodeType::kNf4:
      return; // Part::store_nf4()
  }
}

/// One part of the arrays.
struct Part {
  const BlockArrays& arrays;
  char* values;
  uint8_t* wire;

  uint8_t* codes(int64_t first) const {
    return wire + arrays.format.code_bytes(first);
  }
  void set_scale(int64_t first, float scale) const {
    *wide_scale_at(first) = scale;
  }
  float scale(int64_t first) const {
    if (!arrays.format.compact_scales) {
      return *wide_scale_at(first);
    }
    const ScaleLimits limits = *limits_at(first);
    const uint8_t byte = *compact_scale_at(first);
    return rounded(wide_scale(byte, limits, compact_step(limits) * byte));
  }
  /// Of the block at `first`.
  uint8_t* compact_scale_at(int64_t first) const {
    return wire + arrays.format.scales_begin(arrays.numel) +
           first / arrays.format.block_numel;
  }
  /// Of the group of the block at `first`.
  ScaleLimits* limits_at(int64_t first) const {
    return reinterpret_cast<ScaleLimits*>(
               wire + arrays.format.limits_begin(arrays.numel)) +
           first / arrays.format.unit_numel();
  }
  /// A number as one of the values' type.
  float rounded(float value) const {
    uint16_t narrow = 0;
    switch (arrays.type) {
      case ElementType::kBFloat16:
        narrow_to_bfloat16(&value, 1, &narrow);
        return float_of(uint32_t{narrow} << 16);
      case ElementType::kFloat16:
        narrow_to_float16(&value, 1, &narrow);
        return static_cast<float>(c10::Half(narrow, c10::Half::from_bits()));
      default:
        return value;
    }
  }
  LowPrecision precision() const {
    return arrays.type == ElementType::kBFloat16 ? LowPrecision::kBFloat16
                                                 : LowPrecision::kFloat16;
  }
  bool is_float32() const {
    return arrays.type == ElementType::kFloat32;
  }
  /// Values [first, first + count) in float32. @param scratch for `count` of
  /// them.
  const float* load(int64_t first, int64_t count, float* scratch) const {
    if (is_float32()) {
      return reinterpret_cast<const float*>(values) + first;
    }
    widen_cpu(
        best_isa(),
        reinterpret_cast<const uint16_t*>(values) + first,
        precision(),
        count,
        scratch);
    return scratch;
  }
  /// Where values [first, ...) are to be written in float32, for store().
  float* begin_store(int64_t first, float* scratch) const {
    return is_float32() ? reinterpret_cast<float*>(values) + first : scratch;
  }
  void store(int64_t first, int64_t count, const float* from) const {
    if (is_float32()) {
      return;
    }
    auto* to = reinterpret_cast<uint16_t*>(values) + first;
    narrow(from, count, to);
  }
  void narrow(const float* from, int64_t count, uint16_t* to) const {
    arrays.type == ElementType::kBFloat16 ? narrow_to_bfloat16(from, count, to)
                                          : narrow_to_float16(from, count, to);
  }
  /// Values [first, first + count), those of one block.
  void store_nf4(int64_t first, int64_t count) const {
    const Nf4Table<float> wide = nf4_table(scale(first));
    if (is_float32()) {
      return look_up_nf4(
          codes(first), count, wide, reinterpret_cast<float*>(values) + first);
    }
    Nf4Table<uint16_t> table;
    narrow(wide.data(), static_cast<int64_t>(wide.size()), table.data());
    look_up_nf4(
        codes(first),
        count,
        table,
        reinterpret_cast<uint16_t*>(values) + first);
  }

 private:
  float* wide_scale_at(int64_t first) const {
    return reinterpret_cast<float*>(
               wire + arrays.format.scales_begin(arrays.numel)) +
           first / arrays.format.block_numel;
  }
};

/// @return the block's scale.
float encode_codes(const Part& part, int64_t first, int64_t count) {
  const CodeType type = part.arrays.format.type;
  std::array<float, kMostWidened> scratch;
  // A block that does not fit is widened twice.
  uint32_t largest = 0;
  SignSums sums;
  for (int64_t i = 0; i < count; i += kMostWidened) {
    const int64_t some = std::min(kMostWidened, count - i);
    const float* values = part.load(first + i, some, scratch.data());
    largest = std::max(largest, largest_bits(values, some));
    if (type == CodeType::kSign) {
      add_magnitudes(values, some, sums);
    }
  }
  BlockScale scale = block_scale(type, largest);
  if (type == CodeType::kSign) {
    scale = {sign_scale(largest, sums.total(), sums.count), 0};
  } else if (scale.inverse == 0) {
    std::fill_n(
        part.codes(first),
        part.arrays.format.code_bytes(count),
        zero_codes(type));
    return scale.scale;
  }
  for (int64_t i = 0; i < count; i += kMostWidened) {
    const int64_t some = std::min(kMostWidened, count - i);
    const float* values = part.is_float32() || count > kMostWidened
                              ? part.load(first + i, some, scratch.data())
                              : scratch.data();
    encode(type, values, some, scale.inverse, part.codes(first + i));
  }
  return scale.scale;
}

/// Blocks whose scales are kept together: a group of compact ones, or one.
void encode_unit(const Part& part, int64_t first, int64_t count) {
  if (!part.arrays.format.compact_scales) {
    part.set_scale(first, encode_codes(part, first, count));
    return;
  }
  const int64_t block = part.arrays.format.block_numel;
  const int64_t blocks = part.arrays.format.blocks(count);
  std::array<float, kScaleGroup> scales;
  ScaleLimits limits{kInfinity, 0};
  bool finite = true;
  for (int64_t k = 0; k < blocks; ++k) {
    const int64_t begin = k * block;
    scales[k] =
        encode_codes(part, first + begin, std::min(block, count - begin));
    widen_limits(limits, scales[k]);
    finite = finite && bits_of(scales[k]) < kInfinityBits;
  }
  limits = stored_limits(limits, finite);
  const float inverse = compact_inverse(limits);
  for (int64_t k = 0; k < blocks; ++k) {
    const float above = scales[k] - limits.smallest;
    *part.compact_scale_at(first + k * block) =
        static_cast<uint8_t>(above > 0 ? nearest_int(above * inverse) : 0);
  }
  *part.limits_at(first) = limits;
}

void decode_block(const Part& part, int64_t first, int64_t count) {
  if (part.arrays.format.type == CodeType::kNf4) {
    return part.store_nf4(first, count);
  }
  std::array<float, kMostWidened> scratch;
  for (int64_t i = 0; i < count; i += kMostWidened) {
    const int64_t some = std::min(kMostWidened, count - i);
    float* to = part.begin_store(first + i, scratch.data());
    decode(
        part.arrays.format.type,
        part.codes(first + i),
        some,
        part.scale(first),
        to);
    part.store(first + i, some, to);
  }
}

void sum_block(
    const std::vector<Part>& parts,
    int64_t first,
    int64_t count,
    float factor) {
  std::array<float, kMostWidened> sums;
  std::array<float, kMostWidened> scratch;
  const Part& result = parts.front();
  for (int64_t i = 0; i < count; i += kMostWidened) {
    const int64_t some = std::min(kMostWidened, count - i);
    for (const Part& part : parts) {
      float* to = &part == &result ? sums.data() : scratch.data();
      decode(
          part.arrays.format.type,
          part.codes(first + i),
          some,
          part.scale(first),
          to);
      if (&part != &result) {
        add(to, some, sums.data());
      }
    }
    if (factor != 1) {
      multiply(factor, some, sums.data());
    }
    if (result.is_float32()) {
      std::copy_n(sums.data(), some, result.begin_store(first + i, nullptr));
    } else {
      result.store(first + i, some, sums.data());
    }
  }
}

} // namespace

void detail::run_blocks_cpu(const BlockArrays& arrays) {
  const bool sums = arrays.work == BlockWork::kSum;
  const int64_t value_bytes = arrays.type == ElementType::kFloat32 ? 4 : 2;
  std::vector<Part> parts;
  for (int64_t k = 0; k < arrays.parts; ++k) {
    parts.push_back(
        {arrays,
         static_cast<char*>(arrays.values) +
             (sums ? 0 : k * arrays.numel * value_bytes),
         arrays.wire + k * arrays.format.bytes(arrays.numel)});
  }
  const auto in_steps = [&](int64_t step, const auto& work) {
    return CpuUpdate{arrays.numel, [step, work](int64_t begin, int64_t end) {
                       for (int64_t i = begin; i < end; i += step) {
                         work(i, std::min(step, end - i));
                       }
                       return true;
                     }};
  };
  const int64_t block = arrays.format.block_numel;
  std::vector<CpuUpdate> work;
  if (sums) {
    work.push_back(in_steps(block, [&](int64_t first, int64_t count) {
      sum_block(parts, first, count, arrays.factor);
    }));
  } else if (arrays.work == BlockWork::kEncode) {
    for (const Part& part : parts) {
      work.push_back(in_steps(
          arrays.format.unit_numel(), [&part](int64_t first, int64_t count) {
            encode_unit(part, first, count);
          }));
    }
  } else {
    for (const Part& part : parts) {
      work.push_back(in_steps(block, [&part](int64_t first, int64_t count) {
        decode_block(part, first, count);
      }));
    }
  }
  run_cpu_updates(work);
}

} // namespace tessera::runtime
