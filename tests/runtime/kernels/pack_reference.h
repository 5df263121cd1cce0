// SPDX-License-Identifier: Apache-2.0
#pragma once
// pack_segments_() against LibTorch's own operators, on any device.

#include "tessera/runtime/kernels/pack_segments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tessera {

inline constexpr std::array kPackTypes = {
    at::kFloat,
    at::kDouble,
    at::kHalf,
    at::kBFloat16};

/// What check_pack() does of all it can.
struct PackCase {
  at::ScalarType from;
  at::ScalarType to;
  double factor = 1;
  at::Device device = at::kCPU;
  int64_t longest_numel = 300'001; ///< elements of the longest run
  runtime::PackMode mode = runtime::PackMode::kCopy;
};

/// Packs more runs than a launch takes, of all alignments, some of them zeros,
/// empty, transposed, expanded or with holes, into one buffer, and compares all
/// of it: what lies between the runs keeps its value. Equal to the last bit:
/// factors are applied in float32 (float64 for that type), and LibTorch rounds.
/// Sums are those of float64, rounded once; factors are powers of two then.
/// @param pack pack_segments_(), or what stands for it.
template <typename Pack>
void check_pack(const PackCase& wanted, const Pack& pack) {
  const auto [from, to, factor, device, longest_numel, mode] = wanted;
  const bool adds = mode == runtime::PackMode::kAdd;
  SCOPED_TRACE(
      std::string(c10::toString(from)) + " -> " + c10::toString(to) + " * " +
      std::to_string(factor) + (adds ? ", added" : ""));
  at::manual_seed(3);
  const auto options = at::TensorOptions(device);
  const at::Tensor buffer =
      at::full({longest_numel + 20'000}, 7, options.dtype(to));
  const at::Tensor expected = buffer.clone();
  std::vector<runtime::PackSegment> segments;
  int64_t offset = 1;
  const auto add = [&](const at::Tensor& source,
                       at::IntArrayRef sizes,
                       at::IntArrayRef strides,
                       int64_t extent) {
    segments.push_back({buffer.as_strided(sizes, strides, offset), source});
    const at::Tensor target = expected.as_strided(sizes, strides, offset);
    if (adds && source.defined()) {
      const at::Tensor sum =
          target.to(at::kDouble).add(source.to(at::kDouble), factor);
      const bool any_double = from == at::kDouble || to == at::kDouble;
      target.copy_(any_double ? sum : sum.to(at::kFloat));
    } else if (adds) {
      // Nothing is added.
    } else if (source.defined()) {
      const auto wide = from == at::kDouble ? at::kDouble : at::kFloat;
      target.copy_(source.to(wide) * factor);
    } else {
      target.zero_();
    }
    offset += extent + 1;
  };
  const auto random = [&](at::IntArrayRef sizes) {
    return (at::randn(sizes, at::kDouble) * 3).to(from).to(device);
  };
  for (int64_t i = 0; i < 150; ++i) {
    const int64_t numel = i % 37;
    add(i % 5 == 0 ? at::Tensor() : random({numel}), {numel}, {1}, numel);
  }
  add(random({longest_numel}), {longest_numel}, {1}, longest_numel);
  add({}, {5'003}, {1}, 5'003);
  add(random({20, 30}), {20, 30}, {30, 1}, 600);
  add(random({30, 20}).t(), {20, 30}, {1, 20}, 600);
  add(random({20, 30}), {20, 30}, {1, 20}, 600); // another order in memory
  add(random({1, 30}).expand({20, 30}), {20, 30}, {30, 1}, 600);
  add(random({4, 6}), {4, 6}, {10, 1}, 36); // with holes
  pack(segments, factor, mode);
  EXPECT_TRUE(at::equal(buffer, expected));
}

inline void check_pack(const PackCase& wanted) {
  check_pack(wanted, [](const auto&... arguments) {
    runtime::pack_segments_(arguments...);
  });
}

} // namespace tessera
