// SPDX-License-Identifier: Apache-2.0
// Held against looking every element up.
#include "tessera/sharding/tensors/tensor_blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace tessera::sharding::tensor_blocks_test {

namespace {

using Sizes = std::vector<int64_t>;
using Ranges = std::vector<DimRange>;

/// The elements of the whole that have indices in `ranges`, in their order.
std::vector<int64_t> elements_of(const Sizes& sizes, const Ranges& ranges) {
  const Sizes strides = row_major_strides(sizes);
  std::vector<int64_t> elements;
  for (int64_t e = 0; e < numel_of(sizes, {}); ++e) {
    bool is_in = true;
    for (const DimRange& range : ranges) {
      const auto dim = static_cast<size_t>(range.dim);
      const int64_t index = e / strides[dim] % sizes[dim];
      is_in = is_in && index >= range.begin && index < range.end;
    }
    if (is_in) {
      elements.push_back(e);
    }
  }
  return elements;
}

/// All ranges of some dimension, none, and ranges of two dimensions.
std::vector<Ranges> ranges_of(const Sizes& sizes) {
  std::vector<Ranges> all{{}};
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (int64_t begin = 0; begin < sizes[d]; ++begin) {
      for (int64_t end = begin + 1; end <= sizes[d]; ++end) {
        all.push_back({{static_cast<int64_t>(d), begin, end}});
      }
    }
  }
  for (size_t a = 0; a < sizes.size(); ++a) {
    for (size_t b = a + 1; b < sizes.size(); ++b) {
      all.push_back(
          {{static_cast<int64_t>(a), 0, (sizes[a] + 1) / 2},
           {static_cast<int64_t>(b), sizes[b] / 2, sizes[b]}});
      all.push_back(
          {{static_cast<int64_t>(a), sizes[a] - 1, sizes[a]},
           {static_cast<int64_t>(b), 0, sizes[b]}});
    }
  }
  return all;
}

void check_pair(
    const Sizes& sizes,
    const TensorSlice& here,
    const TensorSlice& there,
    const std::vector<int64_t>& here_elements,
    const std::vector<int64_t>& there_elements) {
  std::map<int64_t, int64_t> place; // there, by element
  for (int64_t i = 0; i < there.numel; ++i) {
    place[there_elements[static_cast<size_t>(there.offset + i)]] = i;
  }
  std::map<int64_t, int64_t> expected; // there, by place here
  for (int64_t i = 0; i < here.numel; ++i) {
    const auto other =
        place.find(here_elements[static_cast<size_t>(here.offset + i)]);
    if (other != place.end()) {
      expected[i] = other->second;
    }
  }
  std::map<int64_t, int64_t> found;
  for (const CommonBlock& common : intersect(sizes, here, there)) {
    int64_t numel = 0;
    for_each_segment(common, [&](int64_t a, int64_t b, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        ASSERT_TRUE(found.emplace(a + i, b + i).second);
      }
      numel += length;
    });
    ASSERT_EQ(numel, common.numel());
  }
  ASSERT_EQ(found, expected);
}

/// Every part in every other one, whole, empty and in two kinds of stretches.
void check_all(const Sizes& sizes) {
  const auto all = ranges_of(sizes);
  for (const Ranges& a : all) {
    const auto a_elements = elements_of(sizes, a);
    const auto a_numel = static_cast<int64_t>(a_elements.size());
    ASSERT_EQ(numel_of(sizes, a), a_numel);
    for (const Ranges& b : all) {
      const auto b_elements = elements_of(sizes, b);
      const auto b_numel = static_cast<int64_t>(b_elements.size());
      const int64_t third = b_numel / 3;
      for (const TensorSlice& part :
           {TensorSlice{b, 0, b_numel},
            TensorSlice{b, third, b_numel - third},
            TensorSlice{b, third, third + 1},
            TensorSlice{b, third, 0}}) {
        if (part.offset + part.numel <= b_numel) {
          check_pair(sizes, {a, 0, a_numel}, part, a_elements, b_elements);
          check_pair(
              sizes,
              {a, a_numel / 2, a_numel - a_numel / 2},
              part,
              a_elements,
              b_elements);
        }
      }
    }
  }
}

SpecAxis tensor_axis(int ranks, int rank, const Shard& shard) {
  return {kTensorAxis, ranks, rank, shard};
}

/// Checks that the parts of all ranks are all of the tensor, once.
void expect_complete(
    const TensorSpec& spec,
    const std::vector<TensorSlice>& parts) {
  std::vector<int> seen(static_cast<size_t>(spec.numel()), 0);
  for (const TensorSlice& part : parts) {
    const auto elements = elements_of(spec.sizes, part.ranges);
    for (int64_t i = 0; i < part.numel; ++i) {
      ++seen[static_cast<size_t>(
          elements.at(static_cast<size_t>(part.offset + i)))];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

} // namespace

TEST(TensorBlocks, AreWhatBothPartsHave) {
  check_all({5});
  check_all({4, 5});
  check_all({1, 6});
  check_all({3, 2, 4});
  check_all({2, 1, 3});
  check_all({2, 3, 1, 2});
}

TEST(TensorBlocks, OfMatricesAreFew) {
  const Sizes sizes{1000, 600};
  // Columns of one division in those of another; rows in columns.
  EXPECT_EQ(
      intersect(
          sizes, {{{1, 0, 300}}, 0, 300'000}, {{{1, 200, 400}}, 0, 200'000})
          .size(),
      1);
  EXPECT_LE(
      intersect(
          sizes, {{{0, 100, 400}}, 50, 170'000}, {{{1, 200, 400}}, 77, 150'000})
          .size(),
      9);
  EXPECT_EQ(intersect(sizes, {{}, 0, 600'000}, {{}, 7, 100'000}).size(), 1);
}

// A scalar, a tensor of no elements, and a stretch of a tensor whose memory has
// gaps, which is longer than its sizes say.
TEST(TensorBlocks, OfUnusualTensors) {
  EXPECT_EQ(intersect(Sizes{}, {{}, 0, 1}, {{}, 0, 1}).size(), 1);
  EXPECT_EQ(blocks_of(Sizes{}, {{}, 0, 1}).size(), 1);
  EXPECT_TRUE(blocks_of(Sizes{3, 0}, {{}, 0, 0}).empty());
  const auto common = intersect(Sizes{2, 2}, {{}, 3, 7}, {{}, 5, 100});
  ASSERT_EQ(common.size(), 1);
  EXPECT_EQ(common[0].numel(), 5);
  EXPECT_EQ(common[0].here.offset, 2);
  EXPECT_EQ(common[0].there.offset, 0);
  // Beyond the end, as a damaged file may say.
  EXPECT_TRUE(
      intersect(Sizes{2, 2}, {{{0, 0, 1}}, 0, 2}, {{}, 4, 100}).empty());
}

// What a checkpoint of one layout has of what another one needs.
TEST(TensorSpec, PartsOfAllRanksAreTheTensor) {
  for (const int64_t dim : {0, 1}) {
    for (const int64_t unit : {1, 2, 3}) {
      for (const int tensor_ranks : {1, 2, 3}) {
        for (const int shards : {1, 2, 5}) {
          TensorSpec spec = full_spec({"w"}, {12, 6}, at::kFloat);
          std::vector<TensorSlice> parts;
          if (spec.sizes[static_cast<size_t>(dim)] / unit < tensor_ranks) {
            continue;
          }
          for (int rank = 0; rank < tensor_ranks; ++rank) {
            spec.axes = {tensor_axis(tensor_ranks, rank, {dim, unit})};
            const int64_t numel = spec.part().numel;
            const auto local = spec.local_sizes();
            EXPECT_EQ(local[0] * local[1], numel);
            EXPECT_EQ(
                local[static_cast<size_t>(dim)],
                spec.split(kTensorAxis).length(rank));
            // After another parameter of 7 elements, in a page with padding.
            const int64_t per_shard = (7 + numel + shards - 1) / shards + 1;
            for (int shard = 0; shard < shards; ++shard) {
              TensorSpec one = spec;
              one.axes.push_back(
                  {kShardAxis, shards, shard, Flat{{7, numel}, per_shard}});
              parts.push_back(one.part());
            }
          }
          SCOPED_TRACE(
              std::to_string(dim) + " by " + std::to_string(unit) + ", " +
              std::to_string(tensor_ranks) + " x " + std::to_string(shards));
          EXPECT_EQ(spec.is_divided(), tensor_ranks > 1);
          expect_complete(spec, parts);
        }
      }
    }
  }
}

// Stacked experts [experts, out, in] over an expert and a tensor axis, of which
// one may divide what the other leaves of the same dimension.
TEST(TensorSpec, NestedAxes) {
  for (const int64_t dim : {0, 1, 2}) {
    TensorSpec spec = full_spec({"experts"}, {6, 4, 5}, at::kFloat);
    std::vector<TensorSlice> parts;
    for (int expert = 0; expert < 2; ++expert) {
      for (int rank = 0; rank < 3; ++rank) {
        spec.axes = {
            {"expert", 2, expert, Shard{0}}, tensor_axis(3, rank, {dim})};
        parts.push_back(spec.part());
        EXPECT_EQ(spec.divided_dim("expert"), 0);
        EXPECT_EQ(spec.divided_dim(kTensorAxis), dim);
      }
    }
    expect_complete(spec, parts);
  }
  TensorSpec spec = full_spec({"experts"}, {6, 4, 5}, at::kFloat);
  spec.axes = {{"expert", 2, 1, Shard{0}}, tensor_axis(3, 2, {-1})};
  EXPECT_EQ(spec.part(), (TensorSlice{{{0, 3, 6}, {2, 4, 5}}, 0, 12}));
  EXPECT_FALSE(spec.divided_dim("pipeline").has_value());
}

TEST(TensorSpec, ReplicatedAxesDivideNothing) {
  TensorSpec spec = full_spec({"w"}, {3, 2}, at::kFloat);
  spec.axes = {{"data", 4, 2, Replicate{}}, tensor_axis(1, 0, {0})};
  EXPECT_EQ(spec.part(), (TensorSlice{{}, 0, 6}));
  EXPECT_FALSE(spec.is_divided());
  EXPECT_EQ(spec.split(kTensorAxis).size(), 3); // over one rank
}

} // namespace tessera::sharding::tensor_blocks_test
