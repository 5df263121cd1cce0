// SPDX-License-Identifier: Apache-2.0
// Held against looking every element up.
#include "tessera/engine/checkpoint/part_elements.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace tessera::engine::part_elements_test {

namespace {

using Sizes = std::vector<int64_t>;

/// The elements of the whole that a part has, in its order.
std::vector<int64_t> elements_of(
    const Sizes& sizes,
    const std::optional<DimPart>& part) {
  const Sizes strides = row_major_strides(sizes);
  std::vector<int64_t> elements;
  for (int64_t e = 0; e < strides[0] * sizes[0]; ++e) {
    const auto dim = static_cast<size_t>(part ? part->dim : 0);
    const int64_t index = e / strides[dim] % sizes[dim];
    if (!part || (index >= part->begin && index < part->end)) {
      elements.push_back(e);
    }
  }
  return elements;
}

/// All parts of some dimension, and the whole.
std::vector<std::optional<DimPart>> parts_of(const Sizes& sizes) {
  std::vector<std::optional<DimPart>> parts{std::nullopt};
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (int64_t begin = 0; begin < sizes[d]; ++begin) {
      for (int64_t end = begin + 1; end <= sizes[d]; ++end) {
        parts.push_back(DimPart{static_cast<int64_t>(d), begin, end});
      }
    }
  }
  return parts;
}

void check_pair(
    const Sizes& sizes,
    const PartStretch& a,
    const PartStretch& b,
    const std::vector<int64_t>& a_elements,
    const std::vector<int64_t>& b_elements) {
  std::map<int64_t, int64_t> expected; // in b, by place in a
  for (int64_t i = 0; i < a.numel; ++i) {
    for (int64_t k = 0; k < b.numel; ++k) {
      if (a_elements[static_cast<size_t>(a.offset + i)] ==
          b_elements[static_cast<size_t>(b.offset + k)]) {
        expected[i] = k;
      }
    }
  }
  std::map<int64_t, int64_t> found;
  for (const CommonRuns& common : common_runs(sizes, a, b)) {
    for (int64_t run = 0; run < common.runs; ++run) {
      for (int64_t i = 0; i < common.length; ++i) {
        const bool is_new = found
                                .emplace(
                                    common.a + run * common.a_pitch + i,
                                    common.b + run * common.b_pitch + i)
                                .second;
        ASSERT_TRUE(is_new);
      }
    }
  }
  ASSERT_EQ(found, expected);
}

/// Every part in every other one, whole and in two kinds of stretches.
void check_all(const Sizes& sizes) {
  const auto parts = parts_of(sizes);
  for (const auto& a : parts) {
    const auto a_elements = elements_of(sizes, a);
    const auto a_numel = static_cast<int64_t>(a_elements.size());
    if (a) {
      ASSERT_EQ(numel_of(sizes, *a), a_numel);
    }
    for (const auto& b : parts) {
      const auto b_elements = elements_of(sizes, b);
      const auto b_numel = static_cast<int64_t>(b_elements.size());
      const int64_t third = b_numel / 3;
      for (const PartStretch& stretch :
           {PartStretch{b, 0, b_numel},
            PartStretch{b, third, b_numel - third},
            PartStretch{b, third, third + 1}}) {
        if (stretch.offset + stretch.numel <= b_numel) {
          check_pair(sizes, {a, 0, a_numel}, stretch, a_elements, b_elements);
          check_pair(
              sizes,
              {a, a_numel / 2, a_numel - a_numel / 2},
              stretch,
              a_elements,
              b_elements);
        }
      }
    }
  }
}

} // namespace

TEST(PartElements, AreThoseThatBothHave) {
  check_all({5});
  check_all({4, 5});
  check_all({1, 6});
  check_all({3, 2, 4});
  check_all({2, 1, 3});
}

TEST(PartElements, OfMatricesAreAFewBlocks) {
  const Sizes sizes{1000, 600};
  // Columns of one division in those of another; rows in columns.
  EXPECT_EQ(
      common_runs(
          sizes,
          {DimPart{1, 0, 300}, 0, 300'000},
          {DimPart{1, 200, 400}, 0, 200'000})
          .size(),
      1);
  EXPECT_LE(
      common_runs(
          sizes,
          {DimPart{0, 100, 400}, 50, 170'000},
          {DimPart{1, 200, 400}, 77, 150'000})
          .size(),
      9);
  EXPECT_EQ(
      common_runs(sizes, {std::nullopt, 0, 600'000}, {std::nullopt, 7, 100'000})
          .size(),
      1);
}

} // namespace tessera::engine::part_elements_test
