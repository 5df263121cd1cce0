// SPDX-License-Identifier: Apache-2.0
// How many dry runs a search of plans takes where nothing fits, of a model
// whose memory and time are formulas.
#include "tessera/planner/search/plan_search.h"

#include "tessera/planner/device_rates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::planner::plan_search_test {

namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kLayers = 40;

/// A run whose layers take `state_bytes` of all devices and `kept_bytes` of a
/// row each, or a tenth of that where they are recomputed.
struct FormulaRun {
  int64_t state_bytes = 6 * kGib; ///< of a layer
  int64_t kept_bytes = 256 * kMib;
  bool recomputes_layers = true;
  int64_t max_length = 1024;
  bool knows_context = true; ///< the task does

  int64_t in_full = 0; ///< dry runs
  int64_t few_layers = 0;
  int64_t lengths = 0; ///< other ones than the run's

  RunSettings read(const std::vector<std::string>& overrides) {
    std::map<std::string, std::string> values;
    for (const std::string& override : overrides) {
      const size_t equals = override.find('=');
      values[override.substr(0, equals)] = override.substr(equals + 1);
    }
    const auto number = [&](const char* key, int64_t otherwise) {
      const auto found = values.find(key);
      return found == values.end() ? otherwise
                                   : std::atoll(found->second.c_str());
    };
    RunSettings settings;
    ParallelSizes& sizes = settings.parallel.sizes;
    sizes.shard = static_cast<int>(number("parallel.shard", 0));
    sizes.tensor = static_cast<int>(number("parallel.tensor", 1));
    sizes.pipeline = static_cast<int>(number("parallel.pipeline", 1));
    sizes.context = static_cast<int>(number("parallel.context", 1));
    if (sizes.context > 1 && !knows_context) {
      throw std::invalid_argument("no context ranks");
    }
    settings.engine.sharding.zero_stage = 3;
    settings.batch_size = number("training.batch_size", 1);
    settings.accumulate = number("training.accumulate", 32);
    settings.recomputed.layers = number("model.checkpoint_layers", 0);
    settings.recomputed.operators = values["recompute_operators"] == "true";
    settings.max_length = number("model.max_length", max_length);
    lengths += settings.max_length != max_length ? 1 : 0;
    settings.tokens = settings.batch_size * settings.max_length;
    settings.layers = kLayers;
    settings.has_alike_layers = true;
    settings.can_plan_fewer_layers = true;
    settings.recomputes_layers = recomputes_layers;
    settings.plan = [this, settings](
                        const Machine& machine, const SettingsRun& run) {
      ++(run.layers ? few_layers : in_full);
      if (!recomputes_layers && settings.recomputed.layers > 0) {
        ADD_FAILURE() << "layers are recomputed that cannot be";
      }
      return std::vector<StepMemoryPlan>(
          static_cast<size_t>(settings.parallel.sizes.pipeline),
          stage(settings, machine.devices, run.layers.value_or(kLayers)));
    };
    return settings;
  }

  /// A stage of those that divide `layers`.
  StepMemoryPlan stage(const RunSettings& settings, int devices, int64_t layers)
      const {
    const ParallelSizes& sizes = settings.parallel.sizes;
    const int64_t recomputed = std::min(settings.recomputed.layers, layers);
    const int64_t kept = kept_bytes * settings.batch_size *
                         settings.max_length / 1024 /
                         (settings.recomputed.operators ? 2 : 1);
    StepMemoryPlan plan;
    auto& planned = plan.planned[static_cast<size_t>(MemoryTier::kDevice)];
    planned[static_cast<size_t>(MemoryPurpose::kParameters)] =
        state_bytes * layers / devices;
    plan.activations_after_forward =
        ((layers - recomputed) * kept + recomputed * kept / 10) /
        (sizes.tensor * sizes.pipeline * sizes.context);
    plan.peak.engine = planned;
    plan.peak.activations = plan.activations_after_forward;
    plan.peak_bytes = plan.peak.total();
    OperatorWork work{.name = "aten::mm", .calls = 1};
    work.flops =
        1e13 *
        static_cast<double>((3 * layers + recomputed) * settings.batch_size) /
        (sizes.tensor * sizes.pipeline * sizes.context);
    plan.operators = {work};
    return plan;
  }

  PlanSearch search(int devices, int64_t device_bytes) {
    PlanSearch search;
    search.read = [this](const std::vector<std::string>& overrides) {
      return read(overrides);
    };
    search.machine.devices = devices;
    search.machine.device = c10::kCPU; // without host memory beside it
    search.machine.device_bytes = device_bytes;
    search.machine.rates = known_rates("a100");
    return search;
  }

  int64_t count(const PlanSearch& search, PlanAnswer& answer) {
    in_full = few_layers = lengths = 0;
    answer = search_plans(search);
    EXPECT_EQ(answer.dry_runs, in_full + few_layers);
    return in_full;
  }
};

const PlannedChange* change_of(
    const PlanAnswer& answer,
    const std::string& option) {
  for (const PlannedChange& each : answer.changes) {
    if (each.change.starts_with(option)) {
      return &each;
    }
  }
  return nullptr;
}

} // namespace

/// State of 240 GiB is too much for 8 devices of 16 GiB, whatever the length of
/// sequences. What more devices would do is what a search of as many finds.
TEST(PlanSearchWhereNothingFits, BoundsWhatElseWouldFit) {
  FormulaRun run;
  PlanAnswer answer;
  const int64_t in_full = run.count(run.search(8, 16 * kGib), answer);
  EXPECT_FALSE(answer.best);
  EXPECT_EQ(run.lengths, 0);
  const PlannedChange* devices = change_of(answer, "--devices ");
  ASSERT_NE(devices, nullptr);
  EXPECT_EQ(devices->change, "--devices 16");
  EXPECT_TRUE(devices->is_fastest);

  FormulaRun other;
  PlanAnswer found;
  const int64_t of_search = other.count(other.search(16, 16 * kGib), found);
  ASSERT_TRUE(found.best);
  EXPECT_EQ(devices->run.overrides, found.best_run()->overrides);
  EXPECT_EQ(devices->run.time.total(), found.best_run()->time.total());
  // Besides the run as it is and the one that lacks the least.
  EXPECT_LE(in_full, of_search + 2);
  EXPECT_LE(run.few_layers, other.few_layers + 24);
}

/// A quarter of the length fits, on 8 tensor ranks; neither more devices nor
/// longer sequences do, which two dry runs of few layers say of each layout.
TEST(PlanSearchWhereNothingFits, AsksFewLayersForTheLeast) {
  FormulaRun run;
  run.state_bytes = kGib;
  run.kept_bytes = 160 * kGib;
  PlanAnswer answer;
  const int64_t in_full = run.count(run.search(8, 16 * kGib), answer);
  EXPECT_FALSE(answer.best);
  EXPECT_GT(run.lengths, 0);
  const PlannedChange* length = change_of(answer, "model.max_length=");
  ASSERT_NE(length, nullptr);
  EXPECT_EQ(length->change, "model.max_length=256");
  EXPECT_FALSE(length->is_fastest);
  EXPECT_LE(in_full, 4);
  EXPECT_LE(run.few_layers, 90);
}

/// Sequences of 128k tokens, of which a device has no room for one: ranks that
/// divide them have, where nodes have no tensor ranks. Short ones are not
/// tried, nor what the task does not know.
TEST(PlanSearchOfLongSequences, DividesThemAmongContextRanks) {
  FormulaRun run;
  run.state_bytes = kGib;
  run.kept_bytes = 16 * kMib;
  run.max_length = 131072;
  const auto answer_of = [&](bool in_full) {
    PlanSearch search = run.search(8, 32 * kGib);
    search.machine.devices_per_node = 1;
    search.overrides = {"training.accumulate=8"};
    search.in_full = in_full;
    return search_plans(search);
  };
  const auto has_context = [](const PlanAnswer& answer) {
    return std::any_of(
        answer.runs.begin(), answer.runs.end(), [](const PlannedRun& each) {
          return each.layout.find("context") != std::string::npos;
        });
  };
  const PlanAnswer answer = answer_of(/*in_full=*/false);
  ASSERT_TRUE(answer.best);
  const PlannedRun& best = *answer.best_run();
  EXPECT_NE(best.layout.find("context"), std::string::npos) << best.layout;
  // Stages of the formula's run have no forward and backward of their own, so
  // that only layouts without them compare.
  const auto seconds_of = [](const PlanAnswer& found) {
    double least = std::numeric_limits<double>::infinity();
    for (const PlannedRun& each : found.runs) {
      if (each.fits() && each.layout.find("pipeline") == std::string::npos) {
        least = std::min(least, each.time.total());
      }
    }
    return least;
  };
  const double in_full = seconds_of(answer_of(/*in_full=*/true));
  EXPECT_LT(in_full, 1000);
  EXPECT_LE(seconds_of(answer), in_full);

  run.max_length = 4096;
  EXPECT_FALSE(has_context(answer_of(/*in_full=*/false)));
  run.max_length = 131072;
  run.knows_context = false;
  EXPECT_FALSE(has_context(answer_of(/*in_full=*/false)));
}

/// Where whole layers cannot be recomputed, that is not tried, and operators
/// are.
TEST(PlanSearchWhereNothingFits, RecomputesWhatCanBe) {
  FormulaRun run;
  run.state_bytes = kGib;
  run.kept_bytes = 512 * kMib;
  run.recomputes_layers = false;
  PlanAnswer answer;
  PlanSearch search = run.search(1, 55 * kGib); // 40 and 20, or 10
  run.count(search, answer);
  ASSERT_TRUE(answer.best);
  EXPECT_TRUE(answer.best_run()->recomputed.operators);
  EXPECT_EQ(answer.best_run()->recomputed.layers, 0);
  search.machine.device_bytes = 45 * kGib;
  run.count(search, answer);
  EXPECT_FALSE(answer.best);
}

} // namespace tessera::planner::plan_search_test
