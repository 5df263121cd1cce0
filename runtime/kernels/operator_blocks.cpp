// SPDX-License-Identifier: Apache-2.0
// The block format by LibTorch's operators, with the roundings of
// [Note: block format].
#include "tessera/runtime/kernels/device_kernels.h"
#include "tessera/runtime/kernels/operator_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace tessera::runtime::detail {

namespace {

/// A number on the device: LibTorch multiplies by the inverse of a divisor that
/// is a number of the host.
at::Tensor number_like(const at::Tensor& like, float number) {
  return at::full({}, static_cast<double>(number), like.options());
}

/// Elements [first, first + count) of a part, a whole number of blocks or the
/// last ones.
struct BlockRange {
  const BlockArrays& all;
  int64_t part;
  int64_t first;
  int64_t count;

  int64_t blocks() const {
    return all.format.blocks(count);
  }
  uint8_t* wire() const {
    return all.wire + part * all.format.bytes(all.numel);
  }
  /// [count]. The values of a sum are those of part 0.
  at::Tensor values() const {
    const at::ScalarType dtype = dtype_of(all.type);
    const int64_t begin = part * all.numel + first;
    return array_tensor(
        static_cast<const char*>(all.values) +
            begin * static_cast<int64_t>(c10::elementSize(dtype)),
        count,
        dtype);
  }
  at::Tensor codes() const {
    return array_tensor(
        wire() + all.format.code_bytes(first),
        all.format.code_bytes(count),
        at::kByte);
  }
  /// [blocks, 1]
  at::Tensor scales() const {
    const int64_t begin = all.format.scales_begin(all.numel) +
                          4 * (first / all.format.block_numel);
    return array_tensor(wire() + begin, blocks(), at::kFloat).unsqueeze(1);
  }
  /// [blocks]: the bytes of compact scales.
  at::Tensor compact_scales() const {
    const int64_t begin =
        all.format.scales_begin(all.numel) + first / all.format.block_numel;
    return array_tensor(wire() + begin, blocks(), at::kByte);
  }
  /// [groups, 2]: the smallest and the largest scale of each.
  at::Tensor limits() const {
    const int64_t begin = all.format.limits_begin(all.numel) +
                          8 * (first / all.format.unit_numel());
    const int64_t groups = (blocks() + kScaleGroup - 1) / kScaleGroup;
    return array_tensor(wire() + begin, 2 * groups, at::kFloat).view({-1, 2});
  }
};

/// [blocks, 1]: the magnitudes of rows added in the order of kSignLanes.
at::Tensor sums_in_lanes(const at::Tensor& magnitudes) {
  const int64_t numel = magnitudes.size(1);
  const at::Tensor rows =
      numel < kSignLanes
          ? at::constant_pad_nd(magnitudes, {0, kSignLanes - numel})
                .unsqueeze(1)
          : magnitudes.view({-1, numel / kSignLanes, kSignLanes});
  at::Tensor sums = rows.select(1, 0);
  for (int64_t k = 1; k < rows.size(1); ++k) {
    sums = sums + rows.select(1, k);
  }
  for (int64_t half = kSignLanes / 2; half > 0; half /= 2) {
    sums = sums.narrow(1, 0, half) + sums.narrow(1, half, half);
  }
  return sums;
}

/// One bit each of eight, four bits each of two: to a byte, the first one low.
/// @param codes [n] int32, n a multiple of how many share a byte.
at::Tensor packed(const at::Tensor& codes, int64_t per_byte) {
  const at::Tensor rows = codes.view({-1, per_byte});
  at::Tensor bytes = rows.select(1, 0);
  for (int64_t k = 1; k < per_byte; ++k) {
    bytes = bytes + rows.select(1, k) * (int64_t{1} << (k * 8 / per_byte));
  }
  return bytes.to(at::kByte);
}

/// The reverse: [n * per_byte] int32.
at::Tensor unpacked(const at::Tensor& bytes, int64_t per_byte) {
  const int64_t bits = 8 / per_byte;
  const at::Tensor wide = bytes.to(at::kInt);
  std::vector<at::Tensor> codes;
  for (int64_t k = 0; k < per_byte; ++k) {
    codes.push_back(
        at::bitwise_right_shift(wide, k * bits) & ((int64_t{1} << bits) - 1));
  }
  return at::stack(codes, 1).flatten();
}

/// What the codes of nf4 stand for: [16].
at::Tensor nf4_values(const at::Tensor& like) {
  at::Tensor values = at::empty({16}, at::kFloat);
  for (int k = 0; k < 16; ++k) {
    values.mutable_data_ptr<float>()[k] = nf4_value(static_cast<uint32_t>(k));
  }
  return values.to(like.device());
}

/// The bytes of scaled values. @param scaled [blocks, block_numel]
at::Tensor codes_of(CodeType type, const at::Tensor& scaled) {
  switch (type) {
    case CodeType::kInt8:
      return at::round(scaled).to(at::kChar).view(at::kByte).flatten();
    case CodeType::kInt4:
      return packed((at::round(scaled).to(at::kInt) & 15).flatten(), 2);
    case CodeType::kFp8:
      return scaled.to(at::kFloat8_e4m3fn).view(at::kByte).flatten();
    case CodeType::kNf4: {
      const at::Tensor all = nf4_values(scaled);
      const at::Tensor halfway =
          (all.narrow(0, 0, 15) + all.narrow(0, 1, 15)) / 2;
      return packed(
          at::bucketize(scaled, halfway, /*out_int32=*/true).flatten(), 2);
    }
    case CodeType::kSign:
      break;
  }
  return {};
}

/// @param scales [blocks], those of some groups.
void store_compact(const BlockRange& range, const at::Tensor& scales) {
  const at::Tensor limits = range.limits();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor padded =
      at::constant_pad_nd(
          scales, {0, limits.size(0) * kScaleGroup - scales.numel()})
          .view({-1, kScaleGroup});
  const at::Tensor least =
      padded.masked_fill(padded == 0, kInfinity).amin({1}, /*keepdim=*/true);
  const at::Tensor smallest = least.masked_fill(at::isinf(least), 0);
  const at::Tensor largest = padded.amax({1}, /*keepdim=*/true);
  const at::Tensor is_finite = at::isfinite(padded).all(1, /*keepdim=*/true);
  const at::Tensor difference = largest - smallest;
  const at::Tensor inverse = (number_like(difference, 255) / difference)
                                 .masked_fill(difference < 1e-36, 0);
  const at::Tensor bytes = at::round((padded - smallest).clamp_min(0) * inverse)
                               .masked_fill(is_finite.logical_not(), 0)
                               .flatten()
                               .narrow(0, 0, scales.numel());
  range.compact_scales().copy_(bytes.to(at::kByte));
  limits.copy_(at::cat({smallest, largest}, 1)
                   .masked_fill(
                       is_finite.logical_not(),
                       std::numeric_limits<double>::quiet_NaN()));
}

/// [blocks, 1]
at::Tensor compact_scales(const BlockRange& range) {
  const auto of_blocks = [&](int64_t column) {
    return range.limits()
        .narrow(1, column, 1)
        .expand({-1, kScaleGroup})
        .reshape({-1})
        .narrow(0, 0, range.blocks());
  };
  const at::Tensor smallest = of_blocks(0);
  const at::Tensor largest = of_blocks(1);
  const at::Tensor bytes = range.compact_scales();
  const at::Tensor step =
      (largest - smallest) * static_cast<double>(1.0F / 255);
  return at::where(
             bytes == 255, largest, smallest + step * bytes.to(at::kFloat))
      .to(dtype_of(range.all.type))
      .to(at::kFloat)
      .unsqueeze(1);
}

void encode(const BlockRange& range) {
  const BlockFormat& format = range.all.format;
  const int64_t padding = range.blocks() * format.block_numel - range.count;
  // Zeros change neither a maximum nor a sum.
  const at::Tensor values =
      at::constant_pad_nd(range.values().to(at::kFloat), {0, padding})
          .view({-1, format.block_numel});
  const at::Tensor magnitudes = values.abs();
  const at::Tensor largest = magnitudes.amax({1}, /*keepdim=*/true);
  const at::Tensor is_zero = largest < 1e-36;
  const at::Tensor is_nan = at::isfinite(largest).logical_not();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor scale;
  at::Tensor codes;
  if (format.type == CodeType::kSign) {
    const at::Tensor count =
        (values != 0).sum({1}, /*keepdim=*/true).to(at::kFloat);
    scale = sums_in_lanes(magnitudes) / count;
    codes = packed((values < 0).to(at::kInt).flatten(), 8);
  } else {
    const at::Tensor code = number_like(largest, largest_code(format.type));
    scale = largest / code;
    const at::Tensor unused = is_zero.logical_or(is_nan);
    const at::Tensor scaled =
        (values * (code / largest)).masked_fill(unused, 0);
    codes = codes_of(format.type, scaled);
  }
  scale = scale.masked_fill(is_zero, 0).masked_fill(is_nan, kNan);
  format.compact_scales ? store_compact(range, scale.flatten())
                        : static_cast<void>(range.scales().copy_(scale));
  const at::Tensor into = range.codes();
  into.copy_(codes.narrow(0, 0, into.numel()));
}

/// [count] float32.
at::Tensor decoded(const BlockRange& range) {
  const BlockFormat& format = range.all.format;
  const at::Tensor scale =
      (format.compact_scales ? compact_scales(range) : range.scales())
          .expand({-1, format.block_numel})
          .reshape({-1})
          .narrow(0, 0, range.count);
  const at::Tensor codes = range.codes();
  const auto each = [&](int64_t per_byte) {
    return unpacked(codes, per_byte).narrow(0, 0, range.count);
  };
  switch (format.type) {
    case CodeType::kInt8:
      return codes.view(at::kChar).to(at::kFloat) * scale;
    case CodeType::kInt4:
      return ((each(2) ^ 8) - 8).to(at::kFloat) * scale;
    case CodeType::kFp8:
      return codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
    case CodeType::kNf4:
      return nf4_values(scale).index_select(0, each(2).to(at::kLong)) * scale;
    case CodeType::kSign:
      return at::where(each(8) != 0, -scale, scale);
  }
  return {};
}

void sum_parts(const BlockArrays& all, int64_t first, int64_t count) {
  at::Tensor sum = decoded({all, 0, first, count});
  for (int64_t part = 1; part < all.parts; ++part) {
    sum = sum + decoded({all, part, first, count});
  }
  const BlockRange result{all, 0, first, count};
  result.values().copy_(
      all.factor == 1 ? sum : sum * static_cast<double>(all.factor));
}

} // namespace

void blocks_by_operators(const BlockArrays& arrays) {
  const PlainOperators plain;
  const int64_t unit = arrays.format.unit_numel();
  const int64_t chunk = std::max(kOperatorChunk / unit, int64_t{1}) * unit;
  const bool sums = arrays.work == BlockWork::kSum;
  for (int64_t part = 0; part < (sums ? 1 : arrays.parts); ++part) {
    for (int64_t first = 0; first < arrays.numel; first += chunk) {
      const int64_t count = std::min(chunk, arrays.numel - first);
      const BlockRange range{arrays, part, first, count};
      if (sums) {
        sum_parts(arrays, first, count);
      } else if (arrays.work == BlockWork::kEncode) {
        encode(range);
      } else {
        range.values().copy_(decoded(range));
      }
    }
  }
}

} // namespace tessera::runtime::detail
