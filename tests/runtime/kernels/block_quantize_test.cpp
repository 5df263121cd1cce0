// SPDX-License-Identifier: Apache-2.0
// The block format: against its definition in float64, and the CUDA kernels,
// compiled as C++, against the CPU's, bit by bit.
#include "tessera/runtime/kernels/block_quantize.h"
#include "support/cuda_shim/guarded_memory.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/cuda_shim/vast_array.h"
#include "support/expect_error.h"
#include "support/paths.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/kernels/block_quantize_cuda.h"
#include "tessera/runtime/kernels/pack_segments.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace tessera::runtime::block_quantize_test {

namespace {

using tests::cuda_shim::GuardedTensors;
using tests::cuda_shim::kernel_options;
using tests::cuda_shim::OptionsScope;
using tests::cuda_shim::VastArray;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  CodeType type;
  at::ScalarType dtype;
  int64_t numel;
  int64_t parts;
  int64_t block;
  bool compact = false;

  BlockFormat format() const {
    return {type, block, compact};
  }
};

/// All types of codes.
constexpr std::array kTypes{
    CodeType::kInt8,
    CodeType::kInt4,
    CodeType::kFp8,
    CodeType::kSign,
    CodeType::kNf4};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const CodeType type : kTypes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      all.push_back({type, dtype, 1, 1, 16});
      all.push_back({type, dtype, 1000, 3, 64});
      all.push_back({type, dtype, 5001, 2, 2048});
    }
    // More than one thread's share of the CPU's pool.
    all.push_back({type, at::kFloat, 140'001, 1, 256});
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    all.push_back({CodeType::kNf4, dtype, 1, 1, 16, /*compact=*/true});
    all.push_back({CodeType::kNf4, dtype, 17'001, 2, 64, /*compact=*/true});
    all.push_back({CodeType::kNf4, dtype, 4'608, 2, 16, /*compact=*/true});
    all.push_back({CodeType::kNf4, dtype, 1'376, 3, 32}); // in packs
  }
  return all;
}

/// Blocks of very different size, one of zeros, one with denormal numbers.
at::Tensor values_of(const Case& c) {
  torch::manual_seed(c.numel + c.block);
  const at::Tensor values = torch::randn({c.parts * c.numel}) *
                            torch::exp(torch::randn({c.parts * c.numel}) * 2);
  const int64_t some = std::min(c.block, c.numel);
  values.narrow(0, values.numel() - some, some).zero_();
  if (c.numel > 3 * c.block) {
    values.narrow(0, c.block, c.block).mul_(1e-39);
    values.narrow(0, 2 * c.block, c.block).mul_(4);
  }
  return values.to(c.dtype);
}

at::Tensor wire_for(const Case& c, const BlockFormat& format) {
  return torch::full({c.parts * format.bytes(c.numel)}, 0xaa, at::kByte);
}

/// The nearest code of e4m3: 8 numbers for each power of two, from 2^-6 to 448.
double nearest_fp8(double value) {
  const double magnitude = std::abs(value);
  const double exponent =
      std::max(-6.0, magnitude > 0 ? std::floor(std::log2(magnitude)) : -6.0);
  const double step = std::exp2(exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, value);
}

double nearest_nf4(double value) {
  constexpr std::array kValues{
      -1.0,
      -0.6961928009986877,
      -0.5250730514526367,
      -0.39491748809814453,
      -0.28444138169288635,
      -0.18477343022823334,
      -0.09105003625154495,
      0.0,
      0.07958029955625534,
      0.16093020141124725,
      0.24611230194568634,
      0.33791524171829224,
      0.44070982933044434,
      0.5626170039176941,
      0.7229568362236023,
      1.0};
  return *std::min_element(
      kValues.begin(), kValues.end(), [value](double a, double b) {
        return std::abs(a - value) < std::abs(b - value);
      });
}

double nearest_code(CodeType type, double value) {
  switch (type) {
    case CodeType::kFp8:
      return nearest_fp8(value);
    case CodeType::kNf4:
      return nearest_nf4(value);
    default:
      return std::nearbyint(value);
  }
}

/// What a block becomes, in float64, with the scale in float32.
std::vector<double> rounded_block(
    const std::vector<double>& block,
    CodeType type) {
  double largest = 0;
  double sum = 0;
  int64_t count = 0;
  for (const double value : block) {
    largest = std::max(largest, std::abs(value));
    sum += std::abs(value);
    count += value != 0 ? 1 : 0;
  }
  std::vector<double> result;
  if (largest < 1e-36) {
    result.assign(block.size(), 0);
    return result;
  }
  const double most = type == CodeType::kInt8   ? 127
                      : type == CodeType::kInt4 ? 7
                      : type == CodeType::kNf4  ? 1
                                                : 448;
  for (const double value : block) {
    if (type == CodeType::kSign) {
      result.push_back((value < 0 ? -1 : 1) * sum / count);
      continue;
    }
    const auto inverse = static_cast<float>(most) / static_cast<float>(largest);
    const double code = static_cast<float>(value) * inverse;
    const auto scale = static_cast<float>(largest) / static_cast<float>(most);
    result.push_back(nearest_code(type, code) * scale);
  }
  return result;
}

at::Tensor reference(const Case& c, const at::Tensor& values) {
  const at::Tensor wide = values.to(at::kDouble).contiguous();
  const at::Tensor result = torch::empty_like(wide);
  for (int64_t part = 0; part < c.parts; ++part) {
    for (int64_t first = 0; first < c.numel; first += c.block) {
      const int64_t count = std::min(c.block, c.numel - first);
      const auto* from = wide.const_data_ptr<double>() + part * c.numel + first;
      const auto rounded = rounded_block({from, from + count}, c.type);
      std::copy(
          rounded.begin(),
          rounded.end(),
          result.mutable_data_ptr<double>() + part * c.numel + first);
    }
  }
  return result;
}

std::string name_of(const Case& c) {
  return "type " + std::to_string(static_cast<int>(c.type)) + ", " +
         c10::toString(c.dtype) + ", " + std::to_string(c.parts) + " x " +
         std::to_string(c.numel) + " in blocks of " + std::to_string(c.block);
}

void by_shim(
    BlockWork work,
    const at::Tensor& values,
    const at::Tensor& wire,
    const BlockFormat& format,
    int64_t numel,
    int64_t parts,
    float factor = 1) {
  EXPECT_EQ(
      launch_blocks(
          {.work = work,
           .format = format,
           .type = *detail::element_type(values.scalar_type()),
           .values = values.data_ptr(),
           .wire = wire.data_ptr<uint8_t>(),
           .numel = numel,
           .parts = parts,
           .factor = factor},
          nullptr),
      cudaSuccess);
}

TEST(BlockQuantize, RoundsAsDefined) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    if (c.compact) {
      continue; // below
    }
    const BlockFormat format = c.format();
    const at::Tensor values = values_of(c);
    const at::Tensor wire = wire_for(c, format);
    encode_blocks_(wire, values, format, c.parts);
    const at::Tensor back = torch::full_like(values, 7);
    decode_blocks_(back, wire, format, c.parts);
    // code * scale is rounded to float32, then to the type.
    const at::Tensor expected = reference(c, values).to(at::kFloat).to(c.dtype);
    const double rounding = c.type == CodeType::kSign ? 1e-6 : 1e-7;
    EXPECT_TRUE(torch::allclose(
        back.to(at::kDouble),
        expected.to(at::kDouble),
        c.dtype == at::kFloat ? rounding : 8e-3,
        c.dtype == at::kHalf ? 1e-7 : 0))
        << (back.to(at::kDouble) - expected.to(at::kDouble)).abs().max();
  }
}

// bitsandbytes has the first of two codes in the high bits.
TEST(BlockQuantize, Nf4IsThatOfBitsandbytes) {
  // Made by make_nf4.py beside it.
  const auto file = SafetensorsFile::open(
      std::filesystem::path(tests::source_dir()) / "tests/runtime/fixtures" /
      "nf4.safetensors");
  const auto read = [&](const std::string& name, at::ScalarType dtype) {
    const auto data = file.at(name).data;
    return torch::from_blob(
               const_cast<std::byte*>(data.data()), // NOLINT: only read
               {static_cast<int64_t>(data.size() / c10::elementSize(dtype))},
               dtype)
        .clone();
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::string name = dtype == at::kFloat ? "float32" : "bfloat16";
    const BlockFormat format{CodeType::kNf4, 64};
    const at::Tensor values = read(name + ".values", dtype);
    const int64_t numel = values.numel();
    const at::Tensor wire = torch::empty({format.bytes(numel)}, at::kByte);
    encode_blocks_(wire, values, format);
    const at::Tensor codes = read(name + ".codes", at::kByte);
    EXPECT_TRUE(torch::equal(
        wire.narrow(0, 0, numel / 2),
        at::bitwise_right_shift(codes, 4) | at::bitwise_left_shift(codes, 4)));
    EXPECT_TRUE(torch::equal(
        wire.narrow(0, format.scales_begin(numel), numel / 64 * 4)
            .view(at::kFloat),
        read(name + ".scales", at::kFloat)));
    const at::Tensor expanded = torch::empty_like(values);
    decode_blocks_(expanded, wire, format);
    EXPECT_TRUE(torch::equal(expanded, read(name + ".expanded", dtype)));
  }
}

// The codes are those of exact scales; a scale is one of 256 between those of
// its group.
TEST(BlockQuantize, CompactScalesAreNearTheScales) {
  constexpr int64_t kBlock = 16;
  constexpr int64_t kNumel = kBlock * (kScaleGroup + 3);
  torch::manual_seed(3);
  const at::Tensor largest = torch::rand({kScaleGroup + 3}) * 3 + 2;
  const at::Tensor values =
      (torch::rand({kScaleGroup + 3, kBlock}) * 2 - 1) * largest.unsqueeze(1);
  values.select(1, 5).copy_(largest);
  const auto decoded = [&](const BlockFormat& format) {
    const at::Tensor wire = torch::empty({format.bytes(kNumel)}, at::kByte);
    encode_blocks_(wire, values.flatten(), format);
    const at::Tensor back = torch::empty({kNumel});
    decode_blocks_(back, wire, format);
    return std::pair(
        wire.narrow(0, 0, format.code_bytes(kNumel)), back.view_as(values));
  };
  const auto [codes, exact] = decoded({CodeType::kNf4, kBlock});
  const auto [same_codes, compact] =
      decoded({CodeType::kNf4, kBlock, /*compact_scales=*/true});
  EXPECT_TRUE(torch::equal(codes, same_codes));
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, kScaleGroup}, {kScaleGroup, 3}}) {
    const at::Tensor group = largest.narrow(0, first, count);
    const at::Tensor scales = compact.select(1, 5).narrow(0, first, count);
    const at::Tensor range = group.max() - group.min();
    EXPECT_TRUE(((scales - group).abs() <= range / 509).all().item<bool>());
    EXPECT_EQ(scales.max().item<float>(), group.max().item<float>());
    EXPECT_EQ(scales.min().item<float>(), group.min().item<float>());
    EXPECT_GT(
        std::get<0>(at::_unique(scales)).numel(),
        std::min<int64_t>(count, 100) - 1);
  }
  EXPECT_TRUE(torch::allclose(
      compact / compact.select(1, 5).unsqueeze(1),
      exact / exact.select(1, 5).unsqueeze(1),
      1e-6,
      1e-7));
}

// Weights that rest in blocks are read and written without a change.
TEST(BlockQuantize, EncodesWhatItHasDecodedToTheSameBits) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    if (c.type == CodeType::kSign || c.type == CodeType::kInt4) {
      continue;
    }
    const BlockFormat format = c.format();
    const at::Tensor wire =
        torch::zeros({c.parts * format.bytes(c.numel)}, at::kByte);
    // float16 rounds the small ones of these blocks to other ratios.
    const at::Tensor values =
        c.dtype == at::kHalf ? torch::randn({c.parts * c.numel}).to(at::kHalf)
                             : values_of(c);
    encode_blocks_(wire, values, format, c.parts);
    const at::Tensor once = torch::empty_like(values);
    decode_blocks_(once, wire, format, c.parts);
    const at::Tensor again = torch::zeros_like(wire);
    encode_blocks_(again, once, format, c.parts);
    const at::Tensor twice = torch::empty_like(values);
    decode_blocks_(twice, again, format, c.parts);
    EXPECT_TRUE(torch::equal(once, twice));
  }
}

// A part of several units has their bytes, whatever the ranks between them.
TEST(BlockQuantize, UnitsAreEncodedAlone) {
  const BlockFormat format{CodeType::kNf4, 16, /*compact_scales=*/true};
  const int64_t unit = format.unit_numel();
  EXPECT_EQ(unit, 16 * kScaleGroup);
  const at::Tensor values = torch::randn({3 * unit});
  const auto decoded = [&](int64_t parts) {
    const at::Tensor wire =
        torch::empty({parts * format.bytes(3 * unit / parts)}, at::kByte);
    encode_blocks_(wire, values, format, parts);
    const at::Tensor back = torch::empty_like(values);
    decode_blocks_(back, wire, format, parts);
    return back;
  };
  EXPECT_TRUE(torch::equal(decoded(1), decoded(3)));
}

TEST(BlockQuantize, AddsUpTheParts) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    if (c.type == CodeType::kNf4) {
      continue;
    }
    const BlockFormat format = c.format();
    const at::Tensor values = values_of(c);
    const at::Tensor wire = wire_for(c, format);
    encode_blocks_(wire, values, format, c.parts);
    const at::Tensor sum = torch::empty({c.numel}, c.dtype);
    sum_blocks_(sum, wire, format, c.parts, 0.25);
    const at::Tensor each = torch::empty({c.parts * c.numel});
    decode_blocks_(each, wire, format, c.parts);
    at::Tensor expected = each.narrow(0, 0, c.numel).clone();
    for (int64_t part = 1; part < c.parts; ++part) {
      expected += each.narrow(0, part * c.numel, c.numel);
    }
    EXPECT_TRUE(torch::equal(sum, (expected * 0.25).to(c.dtype)));
  }
}

TEST(BlockQuantize, CudaKernelsGiveTheSameBits) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    if (c.numel > 100'000) {
      continue; // threads are coroutines
    }
    const OptionsScope options;
    const GuardedTensors guarded;
    const BlockFormat format = c.format();
    const at::Tensor values = values_of(c);
    const at::Tensor wire = wire_for(c, format);
    const at::Tensor other = wire.clone();
    encode_blocks_(wire, values, format, c.parts);
    by_shim(BlockWork::kEncode, values, other, format, c.numel, c.parts);
    EXPECT_TRUE(torch::equal(wire, other));
    const at::Tensor back = torch::empty_like(values);
    const at::Tensor back_other = torch::empty_like(values);
    decode_blocks_(back, wire, format, c.parts);
    by_shim(BlockWork::kDecode, back_other, wire, format, c.numel, c.parts);
    EXPECT_TRUE(torch::equal(back, back_other));
    if (c.type == CodeType::kNf4) {
      continue;
    }
    const at::Tensor sum = torch::empty({c.numel}, c.dtype);
    const at::Tensor sum_other = torch::empty({c.numel}, c.dtype);
    sum_blocks_(sum, wire, format, c.parts, 1.0 / 3);
    by_shim(
        BlockWork::kSum, sum_other, wire, format, c.numel, c.parts, 1.0f / 3);
    EXPECT_TRUE(torch::equal(sum, sum_other));
  }
}

TEST(BlockQuantize, CudaKernelsReachBlocksPastTheGrid) {
  const OptionsScope options;
  static constexpr int64_t kGrid = int64_t{1} << 20;
  const BlockFormat format{CodeType::kInt8, 16};
  constexpr int64_t kNumel = 16 * kGrid + 1;
  VastArray<float> values(kNumel);
  VastArray<uint8_t> wire(format.bytes(kNumel));
  const at::Tensor last = values.elements(kNumel - 1, 1, at::kFloat).fill_(-3);
  const BlockArrays arrays{
      .work = BlockWork::kEncode,
      .format = format,
      .type = ElementType::kFloat32,
      .values = values.data(),
      .wire = wire.data(),
      .numel = kNumel,
      .parts = 1,
      .factor = 1};
  // Its second turn is the last block, of one element.
  kernel_options().runs_block = [](const tests::cuda_shim::dim3& block) {
    EXPECT_EQ(tests::cuda_shim::kernel.grid.x, kGrid);
    return block.x == 0;
  };
  EXPECT_EQ(launch_blocks(arrays, nullptr), cudaSuccess);
  EXPECT_EQ(static_cast<int8_t>(wire.data()[kNumel - 1]), -127);
  last.zero_();
  BlockArrays back = arrays;
  back.work = BlockWork::kDecode;
  EXPECT_EQ(launch_blocks(back, nullptr), cudaSuccess);
  EXPECT_FLOAT_EQ(last.item<float>(), -3);
  kernel_options().failing_launch = kernel_options().launches + 1;
  EXPECT_NE(launch_blocks(arrays, nullptr), cudaSuccess);
}

// A loss scale is lowered where a gradient is not finite on some rank.
TEST(BlockQuantize, KeepsWhatIsNotFinite) {
  for (const CodeType type : kTypes) {
    for (const double bad : {kInf, -kInf, std::nan("")}) {
      const BlockFormat format{type, 16};
      const at::Tensor values = torch::ones({48});
      values[20] = bad;
      const at::Tensor wire = torch::empty({format.bytes(48)}, at::kByte);
      encode_blocks_(wire, values, format);
      decode_blocks_(values, wire, format);
      EXPECT_TRUE(values.narrow(0, 16, 16).isnan().all().item<bool>());
      EXPECT_TRUE(values.narrow(0, 0, 16).eq(1).all().item<bool>());
      EXPECT_TRUE(values.narrow(0, 32, 16).eq(1).all().item<bool>());
    }
  }
}

TEST(BlockQuantize, TakesTheBytesThatItSays) {
  EXPECT_EQ((BlockFormat{CodeType::kInt8, 256}.bytes(1024)), 1024 + 16);
  EXPECT_EQ((BlockFormat{CodeType::kFp8, 256}.bytes(1024)), 1024 + 16);
  EXPECT_EQ((BlockFormat{CodeType::kInt4, 256}.bytes(1024)), 512 + 16);
  EXPECT_EQ((BlockFormat{CodeType::kSign, 256}.bytes(1024)), 128 + 16);
  EXPECT_EQ((BlockFormat{CodeType::kInt4, 16}.bytes(17)), 16 + 16);
  EXPECT_EQ((BlockFormat{CodeType::kNf4, 64}.bytes(16'384)), 8192 + 1024);
  EXPECT_EQ(
      (BlockFormat{CodeType::kNf4, 64, /*compact_scales=*/true}.bytes(16'385)),
      8208 + 272 + 16);
}

TEST(BlockQuantize, RefusesWhatDoesNotFit) {
  const BlockFormat format;
  const at::Tensor wire = torch::empty({format.bytes(64)}, at::kByte);
  expect_error(
      [&] { encode_blocks_(wire, torch::ones({63}), format, 2); },
      {"63 values in 2 parts"});
  expect_error(
      [&] { encode_blocks_(wire, torch::ones({64}, at::kDouble), format); },
      {"float32, bfloat16 or float16"});
  const BlockFormat compact{CodeType::kInt8, 64, /*compact_scales=*/true};
  expect_error(
      [&] {
        encode_blocks_(
            torch::empty({compact.bytes(64)}, at::kByte),
            torch::ones({64}),
            compact);
      },
      {"only nf4"});
  const BlockFormat nf4{CodeType::kNf4, 64};
  expect_error(
      [&] {
        sum_blocks_(
            torch::ones({64}),
            torch::empty({nf4.bytes(64)}, at::kByte),
            nf4,
            1);
      },
      {"not for sums"});
}

} // namespace

} // namespace tessera::runtime::block_quantize_test
