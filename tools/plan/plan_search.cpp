// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_search.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/plan_training.h"
#include "tessera/zoo/tasks/training_config.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace tessera::tools {

namespace {

constexpr int64_t kMostMicroBatch = 64; // rows

/// What PlannedRun says of it.
struct Recomputed {
  int64_t layers = 0;
  bool parts = false;
};

/// What a layout is made of.
struct Layout {
  int tensor = 1;
  int pipeline = 1;
  bool is_offloaded = false;
};

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

class Search {
 public:
  explicit Search(const PlanSearch& search)
      : search_(search),
        given_(zoo::read_training_config(search.config, search.overrides)),
        layers_(zoo::layers_of(given_)) {}

  std::vector<PlannedRun> run() {
    add(planned(
        {},
        {given_.checkpoint_layers.value_or(0),
         given_.engine.recompute_operators || given_.checkpoint_attention}));
    const ParallelSizes& sizes = given_.parallel.sizes;
    const int devices = search_.machine.devices;
    const int divided = sizes.tensor * sizes.pipeline * sizes.context;
    // Of all ranks together; kept.
    examples_ = given_.batch_size * given_.trainer.accumulate *
                std::max(1, devices / divided);
    if (search_.as_given) {
      return std::move(runs_);
    }
    const int in_node = std::min(devices, search_.machine.devices_per_node);
    for (int pipeline = 1; pipeline <= std::min(devices, layers());
         pipeline *= 2) {
      for (int tensor = 1; tensor <= in_node; tensor *= 2) {
        if (devices % (tensor * pipeline) == 0) {
          try_layout({tensor, pipeline, false});
        }
      }
    }
    return std::move(runs_);
  }

 private:
  int layers() const {
    return static_cast<int>(layers_);
  }

  /// Micro-batches of one row, and larger ones as long as they fit and are
  /// faster.
  void try_layout(Layout layout) {
    bool fits = try_batches(layout);
    if (!fits && search_.machine.host_bytes &&
        search_.machine.device != c10::kCPU) {
      layout.is_offloaded = true;
      try_batches(layout);
    }
  }

  bool try_batches(const Layout& layout) {
    bool any = false;
    double fastest = std::numeric_limits<double>::infinity();
    for (int64_t rows = 1; rows <= kMostMicroBatch; rows *= 2) {
      const auto run = fewest_recomputed(layout, rows);
      if (!run) {
        break; // the examples of a step cannot be divided so
      }
      const bool fits = run->fits();
      add(*run);
      if (!fits) {
        break;
      }
      any = true;
      if (run->time.total() > fastest) {
        break; // what more rows save, recomputed layers cost
      }
      fastest = run->time.total();
    }
    return any;
  }

  /// With as few recomputed layers as fit, and with parts of the others where
  /// that is faster; if nothing fits, with all of them.
  std::optional<PlannedRun> fewest_recomputed(
      const Layout& layout,
      int64_t rows) {
    const int batches =
        search_.machine.devices / (layout.tensor * layout.pipeline);
    const int64_t of_all = rows * batches;
    if (examples_ % of_all != 0 || examples_ / of_all < layout.pipeline) {
      return std::nullopt;
    }
    const auto overrides = overrides_of(layout, rows, examples_ / of_all);
    PlannedRun none = planned(overrides, {});
    if (none.fits()) {
      return none;
    }
    PlannedRun whole = fewest_layers(overrides, /*parts=*/false);
    if (whole.recomputed_layers == 1) {
      return whole; // there is no less
    }
    PlannedRun parts = fewest_layers(overrides, /*parts=*/true);
    const bool is_faster =
        parts.fits() &&
        (!whole.fits() || parts.time.total() < whole.time.total());
    return is_faster ? parts : whole;
  }

  PlannedRun fewest_layers(
      const std::vector<std::string>& overrides,
      bool parts) const {
    PlannedRun most = planned(overrides, {layers_, parts});
    if (!most.fits()) {
      return most;
    }
    if (parts) {
      PlannedRun none = planned(overrides, {0, parts});
      if (none.fits()) {
        return none;
      }
    }
    int64_t too_few = 0;
    int64_t enough = layers_;
    while (enough - too_few > std::max<int64_t>(1, layers_ / 16)) {
      const int64_t middle = (too_few + enough) / 2;
      PlannedRun tried = planned(overrides, {middle, parts});
      if (tried.fits()) {
        enough = middle;
        most = std::move(tried);
      } else {
        too_few = middle;
      }
    }
    return most;
  }

  std::vector<std::string> overrides_of(
      const Layout& layout,
      int64_t rows,
      int64_t accumulate) const {
    const Machine& machine = search_.machine;
    const int shard = machine.devices / (layout.tensor * layout.pipeline);
    std::vector<std::string> overrides{
        formatted("parallel.shard={}", shard),
        "parallel.data=1",
        "parallel.context=1",
        "parallel.expert=1",
        formatted("parallel.tensor={}", layout.tensor),
        formatted("parallel.pipeline={}", layout.pipeline),
        formatted("parallel.sequence={}", layout.tensor > 1 ? "true" : "false"),
        formatted("training.batch_size={}", rows),
        formatted("training.accumulate={}", accumulate)};
    if (layout.is_offloaded) {
      overrides.emplace_back("placement.optimizer=host");
      overrides.push_back(
          formatted("memory.host_bytes={}", machine.host_bytes_of_rank()));
    }
    return overrides;
  }

  PlannedRun planned(
      const std::vector<std::string>& overrides,
      const Recomputed& recomputed) const {
    PlannedRun run;
    run.overrides = overrides;
    run.recomputed_layers = recomputed.layers;
    run.recomputes_parts = recomputed.parts;
    run.overrides.push_back(
        formatted("model.checkpoint_layers={}", recomputed.layers));
    if (!overrides.empty()) {
      const auto set = [&](const char* key, bool value) {
        run.overrides.push_back(
            formatted("{}={}", key, value ? "true" : "false"));
      };
      set("recompute_operators", recomputed.parts);
      set("model.checkpoint_attention",
          recomputed.parts && search_.machine.device == c10::kCPU);
    }
    std::vector<std::string> all = search_.overrides;
    all.insert(all.end(), run.overrides.begin(), run.overrides.end());
    try {
      plan_into(run, zoo::read_training_config(search_.config, all));
    } catch (const Error& error) {
      run.problem = "refused: " + first_line(error.what());
    }
    return run;
  }

  void plan_into(PlannedRun& run, zoo::TrainingConfig config) const {
    const Machine& machine = search_.machine;
    const ParallelSizes& sizes = config.parallel.sizes;
    const int divided = sizes.tensor * sizes.pipeline * sizes.context;
    const int batches = std::max(1, machine.devices / divided);
    run.batch_size = config.batch_size;
    run.accumulate = config.trainer.accumulate;
    run.is_offloaded = config.engine.placement.optimizer == MemoryTier::kHost ||
                       config.engine.memory.host_bytes.has_value();
    run.layout = formatted("shard {}", batches);
    const auto add_size = [&](const char* name, int size) {
      if (size > 1) {
        run.layout += formatted(", {} {}", name, size);
      }
    };
    add_size("tensor", sizes.tensor);
    add_size("pipeline", sizes.pipeline);
    add_size("context", sizes.context);
    add_size("expert", sizes.expert);
    EstimatedRun estimated;
    estimated.stages = sizes.pipeline;
    estimated.accumulate = run.accumulate;
    // More micro-batches than a pipeline has in flight are like these.
    estimated.planned_accumulate = std::min<int64_t>(
        run.accumulate, sizes.pipeline > 1 ? 2 * sizes.pipeline : 2);
    estimated.in_16bit =
        config.engine.precision.parameters.value_or(at::kFloat) != at::kFloat;
    config.trainer.accumulate = estimated.planned_accumulate;
    run.stages = zoo::plan_training(config, machine.devices, 0, machine.device);
    for (const StepMemoryPlan& stage : run.stages) {
      run.device_bytes = std::max(run.device_bytes, stage.peak_bytes);
      run.host_bytes = std::max(
          run.host_bytes,
          total_bytes(stage.planned[static_cast<size_t>(MemoryTier::kHost)]));
    }
    run.flops = run.stages.front().flops() *
                static_cast<double>(run.accumulate) /
                static_cast<double>(estimated.planned_accumulate);
    run.time = estimate_step(run.stages, estimated, machine);
    const auto tokens = static_cast<double>(
        run.batch_size * run.accumulate * batches * config.max_length);
    run.tokens_per_s = tokens / run.time.total();
    check_room(run);
  }

  void check_room(PlannedRun& run) const {
    const Machine& machine = search_.machine;
    if (run.device_bytes > machine.room()) {
      const auto largest = std::max_element(
          run.stages.begin(),
          run.stages.end(),
          [](const auto& a, const auto& b) {
            return a.peak_bytes < b.peak_bytes;
          });
      run.problem = formatted(
          "{} above the {} of a device; {} of it are activations{}",
          runtime::size_text(run.device_bytes - machine.room()),
          runtime::size_text(machine.room()),
          runtime::size_text(largest->peak.activations),
          largest->peak.module.empty() ? "" : ", in " + largest->peak.module);
    } else if (
        machine.device != c10::kCPU && run.host_bytes > 0 &&
        run.host_bytes > machine.host_bytes_of_rank()) {
      run.problem = formatted(
          "{} of host memory for a rank, of {}",
          runtime::size_text(run.host_bytes),
          runtime::size_text(machine.host_bytes_of_rank()));
    }
  }

  void add(const PlannedRun& run) {
    runs_.push_back(run);
    if (search_.tell) {
      search_.tell(run);
    }
  }

  const PlanSearch& search_;
  zoo::TrainingConfig given_;
  int64_t layers_;
  int64_t examples_ = 0;
  std::vector<PlannedRun> runs_;
};

} // namespace

std::vector<PlannedRun> search_plans(const PlanSearch& search) {
  return Search(search).run();
}

std::string PlannedRun::recomputed() const {
  return formatted("{}{}", recomputed_layers, recomputes_parts ? "+parts" : "");
}

const PlannedRun* best_of(const std::vector<PlannedRun>& runs) {
  const PlannedRun* best = nullptr;
  for (const PlannedRun& run : runs) {
    if (run.fits() &&
        (best == nullptr || run.time.total() < best->time.total())) {
      best = &run;
    }
  }
  return best;
}

} // namespace tessera::tools
