// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_search.h"

#include "plan/recomputation_search.h"

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

constexpr int64_t kMostSpareActivations = int64_t{64} << 20;

/// What a layout is made of.
struct Layout {
  int tensor = 1;
  int pipeline = 1;
  /// Tensor ranks also divide sequences between layers.
  bool sequence = true;
  bool optimizer_on_host = false;
  /// Of activations in host memory; nothing: they stay on the device.
  std::optional<int64_t> host_activations;
  /// Nothing: the configuration's.
  std::optional<int> zero_stage;
  /// The device's memory is a budget: what activations leave of it keeps
  /// weights unsharded.
  std::optional<int64_t> budgeted_activations;
};

int64_t with_spare(int64_t activations) {
  const int64_t fraction = activations / 50;
  return activations + fraction + std::min(fraction, kMostSpareActivations);
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

class Search {
 public:
  explicit Search(const PlanSearch& search)
      : search_(search),
        given_(zoo::read_training_config(search.config, search.overrides)),
        layers_(zoo::layers_of(given_)),
        recomputation_(layers_, search.machine.room()) {}

  std::vector<PlannedRun> run() {
    add(planned({}, recomputed_parts(given_)));
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
          try_layout({tensor, pipeline});
        }
      }
    }
    return std::move(runs_);
  }

 private:
  int layers() const {
    return static_cast<int>(layers_);
  }

  bool has_host() const {
    return search_.machine.host_bytes && search_.machine.device != c10::kCPU;
  }

  void try_layout(Layout layout) {
    std::optional<PlannedRun> best = try_batches(layout);
    if (!best && has_host()) {
      layout.optimizer_on_host = true;
      best = try_batches(layout);
    }
    if (best) {
      try_memory(layout, *best);
    }
  }

  /// Micro-batches of one row, and larger ones as long as they fit and are
  /// faster. Sequences stay whole where they cannot be divided.
  /// @return the fastest.
  std::optional<PlannedRun> try_batches(Layout& layout) {
    std::optional<PlannedRun> best;
    for (int64_t rows = 1; rows <= kMostMicroBatch; rows *= 2) {
      auto run = least_recomputed(layout, rows);
      if (run && run->stages.empty() && layout.tensor > 1 && layout.sequence) {
        layout.sequence = false; // some models cannot, and some lengths
        run = least_recomputed(layout, rows);
      }
      if (!run) {
        break; // the examples of a step cannot be divided so
      }
      add(*run);
      if (!run->fits() || (best && run->time.total() > best->time.total())) {
        break; // what more rows save, recomputed parts cost
      }
      best = run;
    }
    return best;
  }

  /// Other uses of memory than recomputed parts and sharded weights, in the
  /// layout's best run.
  void try_memory(const Layout& layout, const PlannedRun& best) {
    const auto try_one = [&](const Layout& other) {
      if (const auto run = least_recomputed(other, best.batch_size)) {
        add(*run);
      }
    };
    if (best.time.shards > best.time.compute) {
      for (const int zero_stage : {2, 1}) {
        Layout other = layout;
        other.zero_stage = zero_stage;
        try_one(other);
      }
      Layout other = layout;
      other.budgeted_activations = 0;
      for (const StepMemoryPlan& stage : best.stages) {
        other.budgeted_activations = std::max(
            *other.budgeted_activations, with_spare(stage.peak.activations));
      }
      add(planned(
          overrides_of(other, best.batch_size, best.accumulate),
          best.recomputed,
          other));
    }
    if (!has_host() || !best.recomputed.any()) {
      return;
    }
    if (!layout.optimizer_on_host) {
      Layout other = layout;
      other.optimizer_on_host = true;
      try_one(other);
    }
    if (layout.pipeline == 1) {
      const PlannedRun whole = planned(
          overrides_of(layout, best.batch_size, best.accumulate), {}, layout);
      if (!whole.stages.empty()) {
        Layout other = layout;
        other.host_activations =
            with_spare(whole.stages.front().activations_after_forward);
        add(planned(
            overrides_of(other, best.batch_size, best.accumulate), {}, other));
      }
    }
  }

  /// With as little repeated work as fits.
  std::optional<PlannedRun> least_recomputed(
      const Layout& layout,
      int64_t rows) {
    const int batches =
        search_.machine.devices / (layout.tensor * layout.pipeline);
    const int64_t of_all = rows * batches;
    if (examples_ % of_all != 0 || examples_ / of_all < layout.pipeline) {
      return std::nullopt;
    }
    const auto overrides = overrides_of(layout, rows, examples_ / of_all);
    return recomputation_.least(
        [&](const RecomputedParts& parts) {
          return planned(overrides, parts, layout);
        },
        /*inputs_are_whole=*/layout.tensor > 1 && !layout.sequence);
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
        formatted("parallel.sequence={}", layout.tensor > 1 && layout.sequence),
        formatted("training.batch_size={}", rows),
        formatted("training.accumulate={}", accumulate)};
    if (layout.optimizer_on_host || layout.host_activations) {
      overrides.push_back(
          formatted("memory.host_bytes={}", machine.host_bytes_of_rank()));
    }
    if (layout.optimizer_on_host) {
      overrides.emplace_back("placement.optimizer=host");
    } else if (layout.host_activations) {
      overrides.emplace_back("placement.optimizer=device");
    }
    if (layout.host_activations) {
      overrides.emplace_back("placement.activations=host");
      overrides.push_back(formatted(
          "offload.activation_host_bytes={}", *layout.host_activations));
    }
    if (layout.zero_stage) {
      overrides.push_back(
          formatted("sharding.zero_stage={}", *layout.zero_stage));
    }
    if (layout.budgeted_activations) {
      overrides.push_back(
          formatted("memory.device_bytes={}", machine.device_bytes));
      overrides.push_back(formatted(
          "memory.activation_bytes={}",
          machine.reserved_bytes + *layout.budgeted_activations));
    }
    return overrides;
  }

  PlannedRun planned(
      const std::vector<std::string>& overrides,
      const RecomputedParts& recomputed,
      const Layout& layout = {}) const {
    PlannedRun run;
    run.overrides = overrides;
    run.recomputed = recomputed;
    const auto more = recomputed.overrides();
    run.overrides.insert(run.overrides.end(), more.begin(), more.end());
    std::vector<std::string> all = search_.overrides;
    all.insert(all.end(), run.overrides.begin(), run.overrides.end());
    try {
      plan_into(
          run,
          zoo::read_training_config(search_.config, all),
          layout.host_activations.value_or(0));
    } catch (const Error& error) {
      run.problem = "refused: " + first_line(error.what());
    }
    return run;
  }

  void plan_into(
      PlannedRun& run,
      zoo::TrainingConfig config,
      int64_t host_activations) const {
    const Machine& machine = search_.machine;
    const ParallelSizes& sizes = config.parallel.sizes;
    const int divided = sizes.tensor * sizes.pipeline * sizes.context;
    const int batches = std::max(1, machine.devices / divided);
    run.batch_size = config.batch_size;
    run.accumulate = config.trainer.accumulate;
    run.residency =
        config.engine.memory.device_bytes
            ? "budget"
            : formatted("zero {}", config.engine.sharding.zero_stage);
    const auto& placement = config.engine.placement;
    if (placement.optimizer == MemoryTier::kHost ||
        (!placement.optimizer && config.engine.memory.host_bytes)) {
      run.offloaded = "optimizer";
    }
    if (placement.activations != MemoryTier::kDevice) {
      run.offloaded += run.offloaded.empty() ? "activations" : "+activations";
    }
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
    estimated.host_activation_bytes = static_cast<double>(host_activations);
    // More micro-batches than a pipeline has in flight are like these.
    estimated.planned_accumulate = std::min<int64_t>(
        run.accumulate, sizes.pipeline > 1 ? 2 * sizes.pipeline : 2);
    estimated.in_16bit =
        config.engine.precision.parameters.value_or(at::kFloat) != at::kFloat;
    estimated.averages_weights = config.engine.optimizer.ema_decay > 0;
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
        zoo::planned_tokens(config) * run.accumulate * batches);
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
          "{} of host memory for a rank, of the {} that --host-memory leaves it",
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
  RecomputationSearch recomputation_;
  int64_t examples_ = 0;
  std::vector<PlannedRun> runs_;
};

} // namespace

std::vector<PlannedRun> search_plans(const PlanSearch& search) {
  return Search(search).run();
}

} // namespace tessera::tools
