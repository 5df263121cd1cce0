// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/memory_ledger.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/tasks/training_config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

namespace tessera::tools {

namespace {

/// A row of the table, and its values in JSON.
struct Row {
  std::string tier;
  std::string label;
  int64_t planned = 0;
  int64_t measured = 0;
};

std::vector<Row> rows_of(const SimulatedRun& run) {
  std::vector<Row> rows;
  for (size_t t = 0; t < kMemoryTierCount; ++t) {
    const std::string tier = name_of(static_cast<MemoryTier>(t));
    const MemoryBytes& planned = run.plan.planned[t];
    const MemoryBytes& measured = run.measured[t];
    for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
      if (planned[i] != 0 || measured[i] != 0) {
        rows.push_back(
            {tier,
             name_of(static_cast<MemoryPurpose>(i)),
             planned[i],
             measured[i]});
      }
    }
    const int64_t engine = total_bytes(planned);
    const int64_t held = total_bytes(measured);
    if (t == 0) {
      rows.push_back(
          {tier,
           "activations and other tensors",
           run.plan.peak_bytes - engine,
           run.peak_bytes - held});
      rows.push_back({tier, "peak", run.plan.peak_bytes, run.peak_bytes});
    } else if (engine != 0 || held != 0) {
      rows.push_back({tier, "peak", engine, held});
    }
  }
  return rows;
}

void print_rows(const std::vector<Row>& rows) {
  std::printf(
      "\n%-8s %-30s %14s %14s %9s\n", "tier", "", "planned", "measured", "");
  for (const Row& row : rows) {
    std::printf(
        "%-8s %-30s %14s %14s",
        row.tier.c_str(),
        row.label.c_str(),
        runtime::size_text(row.planned).c_str(),
        runtime::size_text(row.measured).c_str());
    if (row.label == "peak" && row.measured > 0) {
      std::printf(
          " %+8.2f%%",
          100 * (static_cast<double>(row.planned) /
                     static_cast<double>(row.measured) -
                 1));
    }
    std::printf("\n");
  }
}

void print_step(size_t number, const MeasuredStep& step) {
  std::printf(
      "step %zu: %.3f s of computation, %.3f s in place of collectives",
      number,
      step.seconds - step.collective_seconds,
      step.collective_seconds);
  if (step.loss) {
    std::printf(", loss %.4f", *step.loss);
  }
  std::printf("\n");
  std::fflush(stdout);
}

nlohmann::ordered_json json_of(
    const Simulation& simulation,
    const SimulatedRun& run) {
  nlohmann::ordered_json json{
      {"rank", simulation.rank},
      {"world_size", simulation.world_size},
      {"memory", nlohmann::ordered_json::array()},
      {"steps", nlohmann::ordered_json::array()}};
  for (const Row& row : rows_of(run)) {
    json["memory"].push_back(
        {{"tier", row.tier},
         {"what", row.label},
         {"planned", row.planned},
         {"measured", row.measured}});
  }
  for (const MeasuredStep& step : run.steps) {
    json["steps"].push_back(
        {{"compute_s", step.seconds - step.collective_seconds},
         {"collectives_s", step.collective_seconds},
         {"loss",
          step.loss ? nlohmann::ordered_json(*step.loss)
                    : nlohmann::ordered_json()}});
  }
  return json;
}

} // namespace

void run_simulation(const Simulation& simulation) {
  SimulationOptions settings;
  settings.memory_cap = simulation.memory_cap;
  settings.report = [&](const SimulatedRun& run) {
    if (simulation.as_json) {
      return;
    }
    if (run.steps.empty()) {
      std::printf(
          "rank %d of %d, the others simulated; planned peak %s%s\n",
          simulation.rank,
          simulation.world_size,
          runtime::size_text(run.plan.peak_bytes).c_str(),
          simulation.memory_cap
              ? (" of " + runtime::size_text(*simulation.memory_cap)).c_str()
              : "");
      std::fflush(stdout);
    } else {
      print_step(run.steps.size(), run.steps.back());
    }
  };
  const SimulatedRun run = tasks::simulate_training(
      tasks::read_training_config(
          simulation.config,
          simulation.overrides,
          nullptr,
          tasks::HubFiles::kDescriptions),
      simulation.world_size,
      simulation.rank,
      simulation.steps,
      settings);
  if (simulation.as_json) {
    std::printf("%s\n", json_of(simulation, run).dump(2).c_str());
  } else {
    print_rows(rows_of(run));
  }
}

} // namespace tessera::tools
