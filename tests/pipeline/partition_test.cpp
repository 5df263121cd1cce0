// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/partition.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace tessera::pipeline::partition_test {

namespace {

std::vector<LayerCost> times(const std::vector<double>& values) {
  std::vector<LayerCost> costs;
  for (const double value : values) {
    costs.push_back({value, 0, 0});
  }
  return costs;
}

double slowest(const std::vector<LayerCost>& costs, const LayerPartition& cut) {
  double worst = 0;
  for (int model_chunk = 0; model_chunk < cut.model_chunks(); ++model_chunk) {
    double time = 0;
    for (int layer = cut.begin(model_chunk); layer < cut.end(model_chunk);
         ++layer) {
      time += costs[static_cast<std::size_t>(layer)].time;
    }
    worst = std::max(worst, time);
  }
  return worst;
}

bool fits(
    const std::vector<LayerCost>& costs,
    const LayerPartition& cut,
    const std::vector<ModelChunkLimit>& limits) {
  for (int model_chunk = 0; model_chunk < cut.model_chunks(); ++model_chunk) {
    const ModelChunkLimit& limit =
        limits[static_cast<std::size_t>(model_chunk)];
    int64_t bytes = 0;
    for (int layer = cut.begin(model_chunk); layer < cut.end(model_chunk);
         ++layer) {
      const LayerCost& cost = costs[static_cast<std::size_t>(layer)];
      bytes +=
          cost.state_bytes + limit.stored_micro_batches * cost.activation_bytes;
    }
    if (bytes > limit.bytes) {
      return false;
    }
  }
  return true;
}

/// All cuts of `layers` into `model_chunks`.
std::vector<LayerPartition> all_cuts(int layers, int model_chunks) {
  std::vector<LayerPartition> cuts;
  std::vector<bool> border(static_cast<std::size_t>(layers - 1));
  std::fill(border.end() - (model_chunks - 1), border.end(), true);
  do {
    LayerPartition cut{{0}};
    for (int i = 0; i < layers - 1; ++i) {
      if (border[static_cast<std::size_t>(i)]) {
        cut.bounds.push_back(i + 1);
      }
    }
    cut.bounds.push_back(layers);
    cuts.push_back(cut);
  } while (std::next_permutation(border.begin(), border.end()));
  return cuts;
}

} // namespace

TEST(Partition, ByCountGivesTheLastPiecesMore) {
  EXPECT_EQ(partition_by_count(8, 4).bounds, (std::vector{0, 2, 4, 6, 8}));
  EXPECT_EQ(partition_by_count(10, 4).bounds, (std::vector{0, 2, 4, 7, 10}));
  EXPECT_EQ(partition_by_count(3, 3).bounds, (std::vector{0, 1, 2, 3}));
  expect_error([] { partition_by_count(3, 4); }, {"3 layers", "4 pieces"});
  expect_error([] { partition_by_count(-1, 4); }, {"0 layers", "4 pieces"});
  expect_error([] { partition_by_count(3, 0); }, {"got 0"});
}

TEST(Partition, KnowsThePieceOfALayer) {
  const LayerPartition cut{{0, 2, 5}};
  EXPECT_EQ(cut.model_chunk_of(0), 0);
  EXPECT_EQ(cut.model_chunk_of(1), 0);
  EXPECT_EQ(cut.model_chunk_of(2), 1);
  EXPECT_EQ(cut.model_chunk_of(4), 1);
  expect_error([&] { cut.model_chunk_of(5); }, {"layer 5", "0 to 4"});
}

TEST(Partition, ByCostMakesTheSlowestPieceFast) {
  // A model whose head costs as much as three layers.
  EXPECT_EQ(
      partition_by_cost(times({1, 1, 1, 1, 1, 1, 3}), 3).bounds,
      (std::vector{0, 3, 6, 7}));
}

TEST(Partition, ByCostIsOptimalWithAndWithoutLimits) {
  std::mt19937 random(1);
  int infeasible = 0;
  for (int round = 0; round < 300; ++round) {
    const int layers = 1 + static_cast<int>(random() % 9);
    const int model_chunks = 1 + static_cast<int>(random() % layers);
    std::vector<LayerCost> costs;
    for (int i = 0; i < layers; ++i) {
      costs.push_back(
          {static_cast<double>(random() % 10),
           static_cast<int64_t>(random() % 10),
           static_cast<int64_t>(random() % 4)});
    }
    const std::vector<ModelChunkLimit> none(
        static_cast<std::size_t>(model_chunks),
        {std::numeric_limits<int64_t>::max(), 1});
    std::vector<ModelChunkLimit> limits;
    for (int i = 0; i < model_chunks; ++i) {
      limits.push_back(
          {15 + static_cast<int64_t>(random() % 20), model_chunks - i});
    }
    for (const auto& bound : {none, limits}) {
      double best = std::numeric_limits<double>::infinity();
      for (const LayerPartition& cut : all_cuts(layers, model_chunks)) {
        if (fits(costs, cut, bound)) {
          best = std::min(best, slowest(costs, cut));
        }
      }
      if (best == std::numeric_limits<double>::infinity()) {
        ++infeasible;
        expect_error(
            [&] { partition_by_cost(costs, model_chunks, bound); },
            {"do not fit", "times the limit"});
        continue;
      }
      const LayerPartition found =
          partition_by_cost(costs, model_chunks, bound);
      EXPECT_TRUE(fits(costs, found, bound));
      EXPECT_EQ(slowest(costs, found), best);
    }
  }
  EXPECT_GT(infeasible, 10);
  EXPECT_LT(infeasible, 250);
}

TEST(Partition, SaysByHowMuchMemoryIsShort) {
  const std::vector<LayerCost> costs(4, {1, 10, 5});
  // The first of two pieces needs 2 * (10 + 2 * 5) = 40 bytes, and has 20.
  expect_error(
      [&] {
        partition_by_cost(costs, 2, {{20, 2}, {30, 1}});
      },
      {"needs 1.5 times the limit"});
}

TEST(Partition, WrongCostsAndLimitsAreRefused) {
  expect_error(
      [] {
        partition_by_cost(times({1, -1}), 1);
      },
      {"layer 1", "negative"});
  expect_error(
      [] {
        partition_by_cost(times({1, 1}), 2, {{1, 1}});
      },
      {"1 memory limits for 2 pieces"});
  expect_error(
      [] {
        partition_by_cost(times({1}), 1, {{0, 1}});
      },
      {"piece 0 is 0 bytes"});
}

TEST(Partition, ByMapTakesWhatTheUserSays) {
  EXPECT_EQ(
      partition_by_map({0, 0, 0, 1, 2, 2}, 3).bounds,
      (std::vector{0, 3, 4, 6}));
  expect_error(
      [] {
        partition_by_map({0, 1, 0}, 2);
      },
      {"layer 2 on piece 0", "piece 1", "never decrease"});
  expect_error(
      [] {
        partition_by_map({0, 2, 2}, 3);
      },
      {"piece 1 without layers", "layer 1 is on piece 2"});
  expect_error(
      [] {
        partition_by_map({1, 1, 1}, 2);
      },
      {"piece 0 without layers"});
  expect_error(
      [] {
        partition_by_map({0, 0, 0}, 2);
      },
      {"piece 1 without layers", "2 pieces"});
  expect_error(
      [] {
        partition_by_map({0, 5}, 2);
      },
      {"layer 1 on piece 5", "0 to 1"});
}

} // namespace tessera::pipeline::partition_test
