// SPDX-License-Identifier: Apache-2.0
// What is recomputed, and how many dry runs it takes to find that, where memory
// and times are given by formulas.
#include "tessera/planner/search/recomputation_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>

namespace tessera::planner::recomputation_search_test {

namespace {

constexpr int64_t kLayers = 40;

/// Bytes that a layer keeps, and seconds that it takes to compute again.
struct Costs {
  int64_t kept = 100;
  int64_t kept_with_operators = 60;
  int64_t kept_with_attention = 60; ///< and operators
  int64_t input = 10; ///< of a layer that is recomputed
  int64_t divided_input = 10;
  double operators = 0.01;
  double attention = 0.05;
  double layer = 1;
  double gather = 0.1; ///< of a divided input
};

/// Dry runs of a layout with `available_bytes` bytes.
class Layout {
 public:
  Layout(Costs costs, int64_t available_bytes)
      : costs_(costs), room_(available_bytes) {}

  PlannedRun operator()(const RecomputedParts& parts) {
    ++runs_;
    PlannedRun run;
    run.recomputed = parts;
    const int64_t others = kLayers - parts.layers;
    const int64_t kept = parts.attention   ? costs_.kept_with_attention
                         : parts.operators ? costs_.kept_with_operators
                                           : costs_.kept;
    const int64_t input =
        parts.divided_inputs ? costs_.divided_input : costs_.input;
    run.device_bytes = 1000 + others * kept + parts.layers * input;
    run.time.compute = 100 + static_cast<double>(parts.layers) * costs_.layer;
    run.time.compute += parts.operators ? kLayers * costs_.operators : 0;
    run.time.compute +=
        parts.attention ? static_cast<double>(others) * costs_.attention : 0;
    if (parts.divided_inputs) {
      run.time.layers = static_cast<double>(parts.layers) * costs_.gather;
    }
    if (run.device_bytes > room_) {
      run.problem = "above";
    }
    run.stages.resize(1);
    run.stages.front().activations_after_forward = run.device_bytes - 1000;
    return run;
  }

  PlannedRun least(RecomputationSearch& search, bool inputs_are_full = false) {
    runs_ = 0;
    return search.least(
        [this](const RecomputedParts& parts) { return (*this)(parts); },
        inputs_are_full);
  }
  PlannedRun least(bool inputs_are_full = false) {
    RecomputationSearch search(kLayers, room_);
    return least(search, inputs_are_full);
  }
  int runs() const {
    return runs_;
  }

 private:
  Costs costs_;
  int64_t room_;
  int runs_ = 0;
};

} // namespace

TEST(RecomputationSearch, RepeatsNothingThatFits) {
  Layout layout({}, 5000);
  EXPECT_FALSE(layout.least().recomputed.any());
  EXPECT_EQ(layout.runs(), 1);
}

TEST(RecomputationSearch, PrefersOperatorsToLayers) {
  Layout layout({}, 4000);
  const PlannedRun found = layout.least();
  EXPECT_TRUE(found.fits());
  EXPECT_EQ(found.recomputed.text(), "cheap operators");
  EXPECT_EQ(layout.runs(), 3);
}

// One layer is enough, and takes less time than operators of all.
TEST(RecomputationSearch, PrefersFewLayersToOperatorsThatTakeLonger) {
  Costs costs;
  costs.operators = 0.1;
  Layout layout(costs, 4920);
  const PlannedRun found = layout.least();
  EXPECT_TRUE(found.fits());
  EXPECT_FALSE(found.recomputed.operators);
  EXPECT_LE(found.recomputed.layers, 2);
  EXPECT_GE(found.recomputed.layers, 1);
}

// 24 layers besides operators; without these, 32.
TEST(RecomputationSearch, RecomputesAsFewLayersAsAreStillNeeded) {
  Layout layout({}, 2200);
  const PlannedRun found = layout.least();
  EXPECT_TRUE(found.fits());
  EXPECT_TRUE(found.recomputed.operators);
  EXPECT_NEAR(static_cast<double>(found.recomputed.layers), 25, 2);
  // 2 of each kind, attention once, which saves nothing, and the number.
  EXPECT_LE(layout.runs(), 8);
}

// Its activations are not less than without it: other layouts do without.
TEST(RecomputationSearch, TriesOnceWhatSavesNothing) {
  Layout layout({}, 2200);
  RecomputationSearch search(kLayers, 2200);
  layout.least(search);
  const int first = layout.runs();
  EXPECT_FALSE(layout.least(search).recomputed.attention);
  EXPECT_EQ(layout.runs(), first - 1);
}

TEST(RecomputationSearch, RecomputesAttentionWhereThatSavesMemory) {
  Costs costs;
  costs.kept_with_attention = 20;
  Layout layout(costs, 2000);
  const PlannedRun found = layout.least();
  EXPECT_TRUE(found.fits());
  EXPECT_EQ(found.recomputed.text(), "cheap operators, attention");
}

// Whole inputs do not fit, and parts do.
TEST(RecomputationSearch, DividesInputsThatRanksHaveWhole) {
  Costs costs;
  costs.divided_input = 5;
  Layout layout(costs, 1300);
  EXPECT_FALSE(layout.least().fits());
  const PlannedRun found = layout.least(/*inputs_are_full=*/true);
  EXPECT_TRUE(found.fits());
  EXPECT_TRUE(found.recomputed.divided_inputs);
  EXPECT_NEAR(static_cast<double>(found.recomputed.layers), 38, 2);
  EXPECT_EQ(found.recomputed.with_layers(38).column(), "op+38/t");
}

TEST(RecomputationSearch, SaysWhatTakesTheLeastMemoryIfNothingFits) {
  Layout layout({}, 1100);
  const PlannedRun found = layout.least();
  EXPECT_FALSE(found.fits());
  EXPECT_EQ(found.recomputed.layers, kLayers);
}

// Memory is not linear in the number: the last layers save all.
TEST(RecomputationSearch, FindsTheNumberWhereTheGuessIsBad) {
  RecomputationSearch search(kLayers, 1500);
  int runs = 0;
  const PlannedRun found = search.least(
      [&](const RecomputedParts& parts) {
        ++runs;
        PlannedRun run;
        run.recomputed = parts;
        run.stages.resize(1);
        run.device_bytes = parts.layers >= 37 ? 1000 : 5000;
        run.time.compute = 100 + static_cast<double>(parts.layers);
        run.problem = run.device_bytes > 1500 ? "above" : "";
        return run;
      },
      false);
  EXPECT_TRUE(found.fits());
  EXPECT_GE(found.recomputed.layers, 37);
  EXPECT_LE(found.recomputed.layers, 38);
  EXPECT_LE(runs, 14);
}

} // namespace tessera::planner::recomputation_search_test
