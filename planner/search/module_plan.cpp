// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/module_plan.h"

#include "tessera/engine/engine_config.h"
#include "tessera/planner/device_rates.h"
#include "tessera/planner/search/plan_search.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"

#include <torch/nn/modules/batchnorm.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// The CheckpointBlocks of a module, recomputed as they were at its end.
class ModuleBlocks {
 public:
  explicit ModuleBlocks(torch::nn::Module& module) {
    add(module);
    // Without itself, which no shared_ptr may own.
    for (const auto& each : module.modules(/*include_self=*/false)) {
      add(*each);
    }
  }
  ~ModuleBlocks() {
    for (const auto& [block, was] : blocks_) {
      block->use_checkpoint = was;
    }
  }
  ModuleBlocks(const ModuleBlocks&) = delete;
  ModuleBlocks& operator=(const ModuleBlocks&) = delete;

  int64_t count() const {
    return static_cast<int64_t>(blocks_.size());
  }
  int64_t recomputed() const {
    return std::count_if(blocks_.begin(), blocks_.end(), [](const auto& each) {
      return each.second;
    });
  }
  void recompute(int64_t layers) {
    for (const auto& [block, was] : blocks_) {
      block->use_checkpoint = layers-- > 0;
    }
  }

 private:
  void add(torch::nn::Module& module) {
    if (auto* block = dynamic_cast<CheckpointedModule*>(&module)) {
      blocks_.emplace_back(block, block->use_checkpoint);
    }
  }

  std::vector<std::pair<CheckpointedModule*, bool>> blocks_;
};

/// Whether a module normalizes by statistics of its micro-batches, so that what
/// it learns depends on which rows share one.
bool has_batch_statistics(torch::nn::Module& module) {
  const auto is_one = [](torch::nn::Module& each) {
    return each.is_training() &&
           (dynamic_cast<torch::nn::BatchNorm1dImpl*>(&each) != nullptr ||
            dynamic_cast<torch::nn::BatchNorm2dImpl*>(&each) != nullptr ||
            dynamic_cast<torch::nn::BatchNorm3dImpl*>(&each) != nullptr);
  };
  const auto all = module.modules(/*include_self=*/false);
  return is_one(module) ||
         std::any_of(all.begin(), all.end(), [&](const auto& each) {
           return is_one(*each);
         });
}

/// Those of a search's keys that are options of wrap().
bool is_option(const std::string& override) {
  return !override.starts_with("training.") &&
         !override.starts_with("model.") && !override.starts_with("parallel.");
}

/// The run of a module, as a search sees it.
class ModuleRun {
 public:
  ModuleRun(
      torch::nn::Module& module,
      const EngineOptions& options,
      const PlannedModule& training)
      : module_(module),
        options_(options),
        training_(training),
        blocks_(module),
        rows_are_independent_(!has_batch_statistics(module)) {}

  planner::RunSettings read(const std::vector<std::string>& overrides) {
    planner::RunSettings settings;
    settings.engine = options_;
    if (std::find(
            overrides.begin(), overrides.end(), "memory.device_bytes=null") !=
        overrides.end()) {
      settings.engine.memory.device_bytes.reset(); // null is read as absent
    }
    const runtime::ConfigReader reader(
        nlohmann::json::object(), "plan", overrides);
    runtime::read_fields(reader, settings.engine);
    reader.contains("parallel"); // stays as it is
    settings.batch_size = training_.batch_size;
    settings.accumulate = training_.accumulate;
    auto& recomputed = settings.recomputed;
    recomputed.layers =
        training_.layers ? training_.recomputed_layers : blocks_.recomputed();
    recomputed.operators = settings.engine.recompute_operators;
    reader.read([&](runtime::OptionFields& fields) {
      fields.group("training", "", [&] {
        fields.field("batch_size", settings.batch_size, {.min = 1}, "");
        fields.field("accumulate", settings.accumulate, {.min = 1}, "");
      });
      fields.group("model", "", [&] {
        fields.field("checkpoint_layers", recomputed.layers, {.min = 0}, "");
        fields.field("checkpoint_attention", recomputed.attention, "");
        fields.field("divide_checkpoints", recomputed.divided_inputs, "");
      });
    });
    reader.finish();
    check(settings.engine);
    settings.tokens = settings.batch_size;
    settings.layers = training_.layers.value_or(blocks_.count());
    settings.divides_model = false;
    settings.recomputes_attention = false;
    settings.changes_rows = training_.changes_rows && rows_are_independent_;
    settings.plan = [this,
                     engine = settings.engine,
                     rows = settings.batch_size,
                     layers = settings.recomputed.layers](
                        const planner::Machine& machine,
                        const planner::SettingsRun& run) {
      return std::vector{
          planned(engine, rows, layers, machine, run.accumulate)};
    };
    return settings;
  }

 private:
  StepMemoryPlan planned(
      EngineOptions options,
      int64_t rows,
      int64_t layers,
      const planner::Machine& machine,
      int64_t accumulate) {
    options.log_memory = false;
    if (!training_.layers) {
      blocks_.recompute(layers);
    }
    if (training_.prepare) {
      training_.prepare(rows, layers);
    }
    PlannedJob job;
    job.world_size = machine.devices;
    job.device = machine.device;
    job.accumulate = static_cast<int>(accumulate);
    job.clips_gradients = training_.clips_gradients;
    return plan(
        module_, options, [&] { return training_.loss(rows); }, job);
  }

  torch::nn::Module& module_;
  const EngineOptions& options_;
  const PlannedModule& training_;
  ModuleBlocks blocks_;
  bool rows_are_independent_;
};

/// Options of the command line by the names that arguments of a plan have.
std::string argument_names(std::string text) {
  const std::vector<std::pair<std::string, std::string>> names{
      {"--host-memory", "host_memory"},
      {"--nvme-path", "nvme_path"},
      {"--reserve", "reserve"},
      {"--margin", "margin"}};
  for (const auto& [option, argument] : names) {
    size_t found = text.find(option);
    while (found != std::string::npos) {
      text.replace(found, option.size(), argument);
      found = text.find(option);
    }
  }
  return text;
}

ModulePick pick_of(const planner::PlannedRun& run, ModuleRun& module) {
  ModulePick pick;
  if (!run.stages.empty()) { // else they cannot be read, or not used
    pick.options = module.read(run.overrides).engine;
  }
  pick.batch_size = run.batch_size;
  pick.accumulate = run.accumulate;
  pick.recomputed_layers = run.recomputed.layers;
  std::copy_if(
      run.changed.begin(),
      run.changed.end(),
      std::back_inserter(pick.changed),
      is_option);
  pick.device_bytes = run.device_bytes;
  pick.host_bytes = run.host_bytes;
  pick.nvme_bytes = run.nvme_bytes;
  pick.problem = argument_names(run.problem);
  if (!run.stages.empty()) {
    pick.step_seconds = run.time.total();
    pick.rows_per_second = run.tokens_per_s;
    pick.step = run.stages.front();
  }
  return pick;
}

/// "--host-memory 32GiB" of a command line as "host_memory=32GiB".
std::string change_text(std::string change) {
  if (change.starts_with("--")) {
    change.erase(0, 2);
    std::replace(change.begin(), change.end(), '-', '_');
    std::replace(change.begin(), change.end(), ' ', '=');
  }
  return change;
}

planner::Machine machine_of_module(const PlanMachine& machine) {
  try {
    planner::DeviceRates rates = planner::known_rates(machine.device);
    rates.rounds_products =
        machine.device == "cpu" && cpu_matmul() == CpuMatmul::kBfloat16;
    return planner::machine_of(machine, rates);
  } catch (const Error& error) {
    throw Error(argument_names(error.what()));
  }
}

} // namespace

ModulePlan plan(
    torch::nn::Module& module,
    const EngineOptions& options,
    const PlannedModule& training,
    const PlanMachine& machine) {
  TESSERA_CHECK(training.loss, "plan: PlannedModule::loss is empty");
  TESSERA_CHECK(
      training.batch_size > 0 && training.accumulate > 0,
      "plan: batch_size is {} and accumulate {}; both must be at least 1.",
      training.batch_size,
      training.accumulate);
  TESSERA_CHECK(
      !training.layers || training.prepare || *training.layers == 0,
      "plan: PlannedModule::layers is {}, but PlannedModule::prepare is empty; it has them recomputed.",
      training.layers.value_or(0));
  ModuleRun run(module, options, training);
  planner::PlanSearch search;
  search.read = [&](const std::vector<std::string>& overrides) {
    return run.read(overrides);
  };
  search.machine = machine_of_module(machine);
  const planner::PlanAnswer answer = planner::search_plans(search);
  ModulePlan result;
  for (const planner::PlannedRun& each : answer.runs) {
    result.picks.push_back(pick_of(each, run));
  }
  result.best = answer.best;
  result.nearest = answer.nearest;
  for (const planner::PlannedChange& each : answer.changes) {
    ModulePick pick = pick_of(each.run, run);
    if (!each.change.starts_with("--")) { // a key of wrap()
      pick.changed.insert(pick.changed.begin(), each.change);
      // It is not among the run's own overrides.
      std::vector<std::string> all{each.change};
      all.insert(
          all.end(), each.run.overrides.begin(), each.run.overrides.end());
      pick.options = run.read(all).engine;
    }
    result.changes.push_back({change_text(each.change), std::move(pick)});
  }
  result.limit_bytes = search.machine.available_bytes();
  return result;
}

} // namespace tessera
