// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search/plan_search.h"

#include "tessera/planner/search/recomputation_search.h"
#include "tessera/planner/search/run_estimate.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

namespace tessera::planner {

namespace {

constexpr int64_t kMostMicroBatch = 64; // rows

constexpr int64_t kMostSpareActivations = int64_t{64} << 20;

/// Models with fewer layers are planned as they are.
constexpr int64_t kFewestEstimatedLayers = 9;

/// Micro-batches of a dry run: more are like these. A pipeline that alternates
/// forwards and backwards has as many in flight as stages.
int64_t planned_micro_batches(const ParallelOptions& parallel) {
  const int stages = parallel.sizes.pipeline;
  const bool alternates =
      parallel.schedule == PipelineScheduleKind::kOneForwardOneBackward ||
      parallel.schedule == PipelineScheduleKind::kZeroBubble;
  return stages == 1 ? 2 : alternates ? stages + 2 : 2 * stages;
}

/// Of the computation outside of layers, what is surely the head's and not the
/// embedding's.
constexpr double kShareOfHead = 0.9;

/// Ranks that divide the experts of a layer, where the search divides them.
constexpr int kMostExpertRanks = 8;

/// Shorter sequences are not divided among context ranks: rows and tensor ranks
/// do as well.
constexpr int64_t kShortestDivided = 8192;

/// What layouts without exposed all-gathers may save of a step: where it is
/// less, none is tried.
constexpr double kLeastGain = 0.05;

/// Host memory of a node where it is not known and would help.
constexpr int64_t kAnyHostBytes = int64_t{1} << 44;

/// Ranks that divide a model whose runs with budgets are planned.
constexpr int kMostBudgetedDivisors = 4;

/// Times as many devices, or a part of the length, that are tried where nothing
/// fits.
constexpr int kMostTimes = 16;
constexpr size_t kMostChanges = 3;

/// Host memory that is offered is at most this part of it too large.
constexpr int64_t kHostAccuracy = 32;

/// Bits of bytes in the units of offered host memory.
constexpr int kMibShift = 20;
constexpr int kGibShift = 30;

/// The ranks, or groups of them, that have batches of their own.
int64_t given_batches(const ParallelSizes& sizes, int devices) {
  const int divided = sizes.tensor * sizes.pipeline * sizes.context;
  return sizes.shard > 0 ? int64_t{sizes.shard} * sizes.data
                         : std::max(1, devices / divided);
}

/// What a layout is made of.
struct Layout {
  int tensor = 1;
  int pipeline = 1;
  /// Of what is sharded, on nodes of their own.
  int replicas = 1;
  /// Ranks that divide experts; nothing: as many as are given.
  std::optional<int> expert;
  /// Ranks that divide sequences; nothing: as many as are given.
  std::optional<int> context;
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
  /// And what else does not fit goes to the host.
  bool has_host_budget = false;
  /// And what does not fit there, to disks.
  bool has_nvme_budget = false;
  /// Without limit of the device's memory.
  bool on_device = false;
};

/// What Layout::on_device sets.
constexpr std::array<std::string_view, 4> kOnDevice{
    "memory.device_bytes=null",
    "placement.optimizer=device",
    "placement.gradients=device",
    "placement.parameters=device"};

bool is_of_device(const std::string& override) {
  return std::find(kOnDevice.begin(), kOnDevice.end(), override) !=
         kOnDevice.end();
}

int64_t with_spare(int64_t activations) {
  const int64_t fraction = activations / 50;
  return activations + fraction + std::min(fraction, kMostSpareActivations);
}

/// In GiB, but for small models.
std::string bytes_text(int64_t bytes) {
  constexpr int64_t kGib = int64_t{1} << 30;
  return bytes < kGib
             ? runtime::size_text(bytes)
             : formatted(
                   "{:.1f} GiB",
                   static_cast<double>(bytes) / static_cast<double>(kGib));
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// What a configuration has for the keys that a search sets in all layouts.
std::map<std::string, std::string> current_values(
    const RunSettings& config,
    int devices) {
  const ParallelSizes& sizes = config.parallel.sizes;
  const int others = sizes.data * sizes.tensor * sizes.pipeline * sizes.context;
  std::map<std::string, std::string> values{
      {"parallel.shard",
       formatted("{}", sizes.shard == 0 ? devices / others : sizes.shard)},
      {"parallel.data", formatted("{}", sizes.data)},
      {"parallel.context", formatted("{}", sizes.context)},
      {"parallel.expert", formatted("{}", sizes.expert)},
      {"parallel.tensor", formatted("{}", sizes.tensor)},
      {"parallel.pipeline", formatted("{}", sizes.pipeline)},
      {"parallel.sequence", formatted("{}", config.parallel.sequence)},
      {"training.batch_size", formatted("{}", config.batch_size)},
      {"training.accumulate", formatted("{}", config.accumulate)}};
  for (const std::string& override : config.recomputed.overrides()) {
    const size_t equals = override.find('=');
    values[override.substr(0, equals)] = override.substr(equals + 1);
  }
  return values;
}

/// "shard 4, tensor 2"
std::string text_of(const ParallelSizes& sizes, int64_t batches) {
  std::string text = formatted("shard {}", batches / sizes.data);
  const auto add = [&](const char* name, int size) {
    if (size > 1) {
      text += formatted(", {} {}", name, size);
    }
  };
  add("data", sizes.data);
  add("tensor", sizes.tensor);
  add("pipeline", sizes.pipeline);
  add("context", sizes.context);
  add("expert", sizes.expert);
  return text;
}

/// A layout whose fastest run takes at least this.
struct Candidate {
  Layout layout;
  int64_t rows = 1;
  RunEstimate::Estimate least;
};

/// Sums of dry runs of few layers, by their machine and keys: searches for what
/// else would fit have many of them in common.
using FewLayerRuns = std::map<std::string, PlannedRun>;

class Search {
 public:
  /// @param few_layer_runs those that are known; more are added.
  Search(const PlanSearch& search, std::shared_ptr<FewLayerRuns> few_layer_runs)
      : search_(search),
        few_layer_runs_(std::move(few_layer_runs)),
        given_(search.read(search.overrides)),
        values_(current_values(given_, search.machine.devices)),
        layers_(given_.layers),
        most_recomputed_(given_.recomputes_layers ? layers_ : 0),
        plans_fewer_layers_(
            !search.in_full && layers_ >= kFewestEstimatedLayers &&
            given_.can_plan_fewer_layers),
        // What fits into a budget depends on all layers.
        estimates_layers_(
            plans_fewer_layers_ && !given_.engine.memory.device_bytes),
        tries_contexts_(
            given_.divides_model && given_.parallel.sizes.context == 1 &&
            given_.max_length >= kShortestDivided && reads_contexts()),
        alike_stages_once_(
            !search.in_full && !search.as_given && given_.has_alike_layers),
        recomputation_(
            most_recomputed_,
            search.machine.available_bytes(),
            given_.recomputes_attention) {
    const ParallelSizes& sizes = given_.parallel.sizes;
    const int divided = sizes.tensor * sizes.pipeline * sizes.context;
    const int64_t of_rank = given_.batch_size * given_.accumulate;
    given_examples_ = of_rank * given_batches(sizes, search.machine.devices);
    // Of all ranks together; kept.
    examples_ = search.machine.devices % divided == 0
                    ? of_rank * (search.machine.devices / divided)
                    : given_examples_;
  }

  PlanAnswer run() {
    try_all();
    lift_placements();
    if (best() == nullptr && !search_.as_given) {
      add_refused(refused_on_device_); // may lack less than with host memory
      try_changes();
    }
    return finished();
  }

  /// What run() finds; null if nothing fits.
  const PlannedRun* found() {
    if (estimates_layers_ && given_.parallel.sizes.data == 1) {
      has_given_ = false; // it is one of the layouts
      try_layouts();
      try_larger_micro_batches();
    } else {
      try_all();
    }
    return preferred();
  }

  /// False where dry runs of few layers say that no layout without pipeline
  /// stages fits, whatever is recomputed.
  bool may_fit() {
    if (!bounds_memory()) {
      return true;
    }
    std::vector<Layout> layouts = flat_layouts();
    std::reverse(layouts.begin(), layouts.end()); // the smallest first
    return std::any_of(
        layouts.begin(), layouts.end(), [&](const Layout& layout) {
          const auto least = estimate_of(layout, least_rows()).least_bytes();
          return !least || *least <= search_.machine.available_bytes();
        });
  }

  /// The first layout without pipeline stages that fits, from those with the
  /// fewest tensor ranks, one row at a time; null if there is none.
  const PlannedRun* first_that_fits() {
    for (Layout layout : flat_layouts()) {
      for (const bool on_host : {false, true}) {
        layout.optimizer_on_host = on_host;
        if ((!on_host || (has_host() && !fixes_optimizer())) &&
            add_fitting(layout)) {
          return best();
        }
      }
      layout.optimizer_on_host = false;
      try_all_budgets(layout);
      if (best() != nullptr) {
        return best();
      }
    }
    return nullptr;
  }

 private:
  void try_all() {
    add(planned({}, given_.recomputed),
        Layout{
            .tensor = given_.parallel.sizes.tensor,
            .pipeline = given_.parallel.sizes.pipeline,
            .sequence = given_.parallel.sequence});
    if (!search_.as_given) {
      try_layouts();
      try_larger_micro_batches();
    }
  }

  /// Whether the task and the other keys allow context ranks.
  bool reads_contexts() const {
    std::vector<std::string> overrides = search_.overrides;
    overrides.emplace_back("parallel.context=2");
    try {
      search_.read(overrides);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  int layers() const {
    return static_cast<int>(layers_);
  }

  /// Dry runs of few layers say what cannot fit.
  bool bounds_memory() const {
    return estimates_layers_ && !has_host();
  }

  /// All that can be.
  RecomputedParts all_recomputed() const {
    return {
        .layers = most_recomputed_,
        .operators = true,
        .attention = most_recomputed_ == 0 && given_.recomputes_attention};
  }

  /// Those without pipeline stages that the devices and examples can be divided
  /// by, from the fewest tensor ranks on.
  std::vector<Layout> flat_layouts() const {
    std::vector<Layout> layouts;
    for (int tensor = 1; tensor <= most_tensor(); tensor *= 2) {
      add_contexts({.tensor = tensor}, layouts);
    }
    std::erase_if(layouts, [&](const Layout& layout) {
      return !divides(layout, least_rows());
    });
    return layouts;
  }

  /// Adds the layout with each number of context ranks.
  void add_contexts(Layout layout, std::vector<Layout>& layouts) const {
    const int ranks =
        search_.machine.devices / (layout.tensor * layout.pipeline);
    const auto is_divisor = [&](int context) {
      return search_.machine.devices %
                 (layout.tensor * layout.pipeline * context) ==
             0;
    };
    if (is_divisor(context_of(layout))) {
      layouts.push_back(layout);
    }
    if (!tries_contexts_) {
      return;
    }
    for (int context = 2; context <= ranks; context *= 2) {
      if (is_divisor(context)) {
        layout.context = context;
        layouts.push_back(layout);
      }
    }
  }

  int most_tensor() const {
    return given_.divides_model ? search_.machine.ranks_of_node() : 1;
  }

  /// Of a micro-batch.
  int64_t least_rows() const {
    return given_.changes_rows ? 1 : given_.batch_size;
  }
  int64_t most_rows() const {
    return given_.changes_rows ? kMostMicroBatch : given_.batch_size;
  }

  bool has_host() const {
    return search_.machine.host_bytes.has_value();
  }

  const PlannedRun* best() const {
    return best_of(runs_);
  }

  /// PlanAnswer::best; null if none fits.
  const PlannedRun* preferred() const {
    const PlannedRun* fastest = best();
    if (fastest == nullptr || fastest->estimated.stages > 1) {
      return fastest; // stages of a pipeline wait for fewer micro-batches
    }
    const PlannedRun* found = fastest;
    for (const PlannedRun& run : runs_) {
      const bool is_given = has_given_ && &run == &runs_.front();
      if (run.fits() && run.layout == fastest->layout &&
          is_nearly_as_fast(run) &&
          (is_given ? given_examples_ == examples_
                    : has_same_memory(run, *fastest)) &&
          run.accumulate < found->accumulate) {
        found = &run;
      }
    }
    return found;
  }

  bool is_nearly_as_fast(const PlannedRun& run) const {
    return run.time.total() <= (1 + kTimeAccuracy) * best_seconds();
  }

  static bool has_same_memory(const PlannedRun& a, const PlannedRun& b) {
    return a.recomputed == b.recomputed && a.residency == b.residency &&
           a.offloaded == b.offloaded;
  }

  /// The fastest run with more rows of a micro-batch, as many as fit and are
  /// nearly as fast.
  void try_larger_micro_batches() {
    if (best() == nullptr || (has_given_ && best() == runs_.data())) {
      return; // as it is given
    }
    const PlannedRun fastest = *best();
    const Layout layout = layouts_[static_cast<size_t>(best() - runs_.data())];
    if (layout.pipeline > 1 || layout.budgeted_activations ||
        layout.host_activations) {
      return; // sized for its rows
    }
    for (int64_t rows = 2 * fastest.batch_size;
         rows <= most_rows() && divides(layout, rows);
         rows *= 2) {
      const bool is_known =
          std::any_of(runs_.begin(), runs_.end(), [&](const PlannedRun& run) {
            return run.layout == fastest.layout && run.batch_size == rows &&
                   has_same_memory(run, fastest);
          });
      if (is_known) {
        continue;
      }
      PlannedRun run = planned(
          overrides_of(layout, rows, accumulate_of(layout, rows)),
          fastest.recomputed);
      if (!run.fits() || !is_nearly_as_fast(run)) {
        break;
      }
      add(std::move(run), layout);
    }
  }

  double best_seconds() const {
    const PlannedRun* run = best();
    return run == nullptr ? std::numeric_limits<double>::infinity()
                          : run->time.total();
  }

  void try_layouts() {
    const int devices = search_.machine.devices;
    const int stages = given_.divides_model ? std::min(devices, layers()) : 1;
    std::vector<Layout> layouts;
    for (int pipeline = 1; pipeline <= stages; pipeline *= 2) {
      for (int tensor = 1; tensor <= most_tensor(); tensor *= 2) {
        add_contexts({.tensor = tensor, .pipeline = pipeline}, layouts);
      }
    }
    can_share_examples_ =
        std::any_of(layouts.begin(), layouts.end(), [&](const Layout& layout) {
          return divides(layout, least_rows());
        });
    if (estimates_layers_) {
      try_estimated(layouts);
    } else {
      for (const Layout& layout : layouts) {
        try_in_full(layout);
      }
    }
    if (best() == nullptr) {
      for (const Layout& layout : layouts) {
        if (layout.tensor * layout.pipeline <= kMostBudgetedDivisors) {
          try_all_budgets(layout);
        }
      }
    }
  }

  void try_estimated(const std::vector<Layout>& layouts) {
    try_candidates(layouts, /*optimizer_on_host=*/false);
    if (best() == nullptr && has_host() && !fixes_optimizer()) {
      try_candidates(layouts, /*optimizer_on_host=*/true);
    }
    if (best() != nullptr) {
      const PlannedRun run = *best();
      const Layout layout =
          layouts_[static_cast<size_t>(best() - runs_.data())];
      try_memory(layout, run);
    }
  }

  /// Plans the fastest first, until the others cannot be faster.
  void try_candidates(std::vector<Layout> layouts, bool optimizer_on_host) {
    std::vector<Candidate> candidates;
    double least = best_seconds();
    for (Layout& layout : layouts) {
      if (layout.pipeline == 1) {
        layout.optimizer_on_host = optimizer_on_host;
        add_candidates(layout, candidates, least);
      }
    }
    add_pipelines(layouts, candidates, least);
    std::stable_sort(
        candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
          return a.least.time.total() < b.least.time.total();
        });
    // What is estimated best is planned first: others may then be left out.
    const auto first = std::find_if(
        candidates.begin(), candidates.end(), [](const Candidate& candidate) {
          return candidate.layout.pipeline == 1;
        });
    if (first != candidates.end()) {
      std::rotate(candidates.begin(), first, first + 1);
    }
    for (const Candidate& candidate : candidates) {
      if (candidate.least.time.total() < best_seconds()) {
        if (auto run = confirmed(candidate)) {
          add(std::move(*run), candidate.layout);
        }
      } else {
        add_bound(candidate);
      }
    }
    if (best() == nullptr) {
      add_refused(std::exchange(refused_, {}));
    }
  }

  /// Micro-batches of one row, and larger ones as long as they may be faster.
  /// @param least seconds of the fastest candidate; lowered.
  void add_candidates(
      Layout layout,
      std::vector<Candidate>& candidates,
      double& least) {
    for (int64_t rows = least_rows(); rows <= most_rows(); rows *= 2) {
      if (!divides(layout, rows)) {
        break; // the examples of a step cannot be divided so
      }
      RunEstimate* estimate = &estimate_of(layout, rows);
      if (!estimate->refusal().empty() && layout.tensor > 1 &&
          layout.sequence) {
        layout.sequence = false; // some models cannot, and some lengths
        estimate = &estimate_of(layout, rows);
      }
      const auto found = estimate->least(search_.machine.available_bytes());
      if (!found) {
        if (rows == 1 && estimate->refusal().empty() && !layout.sequence &&
            layout.tensor > 1) {
          // Recomputed layers may divide their inputs.
          if (auto run = least_recomputed(layout, rows)) {
            add(std::move(*run), layout);
          }
        } else if (rows == 1) {
          refuse(layout, rows, *estimate);
        }
        break;
      }
      if (has_host() && found->host_bytes > host_bytes()) {
        break;
      }
      candidates.push_back({layout, rows, *found});
      least = std::min(least, found->time.total());
      const double shards = found->time.shards / 2;
      const double more = std::max(
          found->time.total_with_more_rows(), shards + found->time.layers);
      if (more >= least) {
        break; // what more rows save, recomputed parts cost
      }
    }
  }

  /// Of a pipeline no memory and no time is less than of the same tensor ranks
  /// without one, but for what is not in layers and for all-gathers; see
  /// least_share_of_shards(). Stages have fewer layers each, whose shards are
  /// larger, and keep more micro-batches.
  /// @param least seconds of the fastest candidate so far.
  void add_pipelines(
      const std::vector<Layout>& layouts,
      std::vector<Candidate>& candidates,
      double least) {
    for (Layout layout : layouts) {
      if (layout.pipeline == 1) {
        continue;
      }
      Layout flat = layout;
      flat.pipeline = 1;
      for (int64_t rows = least_rows(); rows <= most_rows(); rows *= 2) {
        if (!divides(layout, rows)) {
          break;
        }
        if (!divides(flat, rows)) {
          // Nothing is known of it.
          candidates.push_back({layout, rows, {}});
          continue;
        }
        flat.sequence = true;
        RunEstimate* estimate = &estimate_of(flat, rows);
        if (!estimate->refusal().empty() && flat.tensor > 1) {
          flat.sequence = false;
          estimate = &estimate_of(flat, rows);
        }
        auto found = estimate->least(
            search_.machine.available_bytes(),
            [](const RunEstimate::Estimate& each) {
              return each.bytes_of_layers;
            });
        if (!found) {
          break;
        }
        layout.sequence = flat.sequence;
        StepTime& time = found->time;
        const double uneven =
            std::ceil(static_cast<double>(layers_) / layout.pipeline) *
            layout.pipeline / static_cast<double>(layers_);
        // The stage with the head computes it for all micro-batches.
        const bool has_full_head =
            given_.parallel.cut == pipeline::PipelineCut::kLayers &&
            given_.parallel.piece_of_layer.empty();
        const double least_part = time.least_compute / time.compute;
        // Without updates, which a pipeline has as often.
        const double others = std::max(
            0.0, time.compute - found->compute_of_layers - time.device_update);
        time.compute =
            found->compute_of_layers * uneven +
            others * (has_full_head
                          ? std::max(1.0, kShareOfHead * layout.pipeline)
                          : 1);
        time.shards =
            found->shards_of_layers * least_share_of_shards(layout, flat);
        time.activations = 0;
        time.idle = (time.compute + time.layers) * (layout.pipeline - 1) /
                    static_cast<double>(accumulate_of(layout, rows)) /
                    given_.parallel.chunks;
        if (given_.parallel.schedule == PipelineScheduleKind::kZeroBubble) {
          time.idle = 0;
        }
        // Larger and fewer micro-batches wait longer.
        time.least_compute = least_part * time.compute;
        const double more = time.total_with_more_rows() + 2 * time.idle;
        const double self_seconds = time.total();
        candidates.push_back({layout, rows, *found});
        if (more >= std::min(least, self_seconds)) {
          break;
        }
      }
    }
  }

  /// All-gathers and reductions of a pipeline's layers in a step, at least, as
  /// a part of those without one. With ZeRO stage 3 both are as often for each
  /// layer of a stage and each micro-batch, of which a pipeline has more, as it
  /// has fewer layers in a stage. But a larger part of a shorter group of ranks
  /// is there already, and so are the layers that slots still hold from the
  /// forward or backward before.
  double least_share_of_shards(const Layout& layout, const Layout& flat) const {
    const ShardingOptions& sharding = given_.engine.sharding;
    if (sharding.zero_stage != 3 || !sharding.modules.empty() ||
        sharding.shard_ranks != 0 ||
        sharding.accumulation.value_or(
            GradientAccumulation::kReduceEachBackward) !=
            GradientAccumulation::kReduceEachBackward) {
      return 0;
    }
    const auto sent = [&](const Layout& of) {
      return 1 - 1.0 / (batches_of(of) * context_of(of));
    };
    const double of_chunk = static_cast<double>(layers_) /
                            (layout.pipeline * given_.parallel.chunks);
    const double in_slots = 1 + sharding.prefetch_depth;
    return sent(flat) > 0 ? sent(layout) / sent(flat) *
                                std::max(0.0, 1 - in_slots / of_chunk)
                          : 0;
  }

  /// Plans a candidate with all layers, and more recomputed ones until it fits.
  std::optional<PlannedRun> confirmed(const Candidate& candidate) {
    const int64_t fine = std::max<int64_t>(1, layers_ / 16);
    RecomputedParts parts = candidate.least.recomputed;
    const auto overrides = overrides_of(
        candidate.layout,
        candidate.rows,
        accumulate_of(candidate.layout, candidate.rows));
    std::optional<PlannedRun> before;
    PlannedRun run;
    for (;;) {
      run = planned(overrides, parts);
      if (run.fits() || run.stages.empty()) {
        break;
      }
      const int64_t excess =
          run.device_bytes - search_.machine.available_bytes();
      if (run.time.total() >= best_seconds() || excess <= 0) {
        break; // recomputation takes longer still, or saves host memory none
      }
      int64_t more = fine;
      if (before && before->device_bytes > run.device_bytes) {
        const int64_t saved = (before->device_bytes - run.device_bytes) /
                              (parts.layers - before->recomputed.layers);
        more = std::clamp<int64_t>(
            excess / std::max<int64_t>(1, saved) + 1, 1, layers_);
      }
      if (parts.layers == most_recomputed_) {
        if (parts.operators &&
            (parts.attention || !given_.recomputes_attention)) {
          break;
        }
        // The next kind, from its beginning.
        (parts.operators ? parts.attention : parts.operators) = true;
        parts.layers = 0;
        before.reset();
        continue;
      }
      before = std::move(run);
      parts.layers = std::min(most_recomputed_, parts.layers + more);
    }
    return run;
  }

  using EstimateKey = std::vector<int64_t>;

  static EstimateKey key_of(const Layout& layout, int64_t rows) {
    return {
        layout.tensor,
        layout.context.value_or(0),
        layout.sequence,
        layout.replicas,
        layout.expert.value_or(0),
        layout.zero_stage.value_or(-1),
        layout.optimizer_on_host,
        rows};
  }

  /// Without pipeline stages.
  RunEstimate& estimate_of(const Layout& layout, int64_t rows) {
    auto& estimate = estimates_[key_of(layout, rows)];
    if (!estimate) {
      const auto overrides =
          overrides_of(layout, rows, accumulate_of(layout, rows));
      estimate = std::make_unique<RunEstimate>(
          [this, overrides](const RecomputedParts& parts, int64_t layers) {
            return planned(overrides, parts, layers);
          },
          layers_,
          given_.recomputes_layers);
    }
    return *estimate;
  }

  /// What takes more memory than there is, by an estimate.
  struct Refused {
    Layout layout;
    int64_t rows = 1;
    int64_t least_bytes = 0; ///< of a device, with all that can be recomputed
  };

  void refuse(const Layout& layout, int64_t rows, RunEstimate& estimate) {
    if (!estimate.refusal().empty() || best() != nullptr) {
      return;
    }
    // First with the host, where it can be.
    (has_host() && !layout.optimizer_on_host && !fixes_optimizer()
         ? refused_on_device_
         : refused_)
        .push_back({layout, rows, estimate.least_bytes().value_or(0)});
  }

  /// Plans that which lacks the least; of the others their bounds are enough.
  void add_refused(const std::vector<Refused>& refused) {
    const auto least = std::min_element(
        refused.begin(), refused.end(), [](const auto& a, const auto& b) {
          return a.least_bytes < b.least_bytes;
        });
    for (auto each = refused.begin(); each != refused.end(); ++each) {
      const auto overrides = overrides_of(
          each->layout, each->rows, accumulate_of(each->layout, each->rows));
      if (each == least) {
        add(planned(overrides, all_recomputed()), each->layout);
        continue;
      }
      add_refused_bound(*each);
    }
  }

  void add_refused_bound(const Refused& refused) {
    const auto overrides = overrides_of(
        refused.layout,
        refused.rows,
        accumulate_of(refused.layout, refused.rows));
    PlannedRun run = named(overrides, all_recomputed());
    run.device_bytes = refused.least_bytes;
    run.problem = formatted(
        "at least {} above the {} of a device",
        bytes_text(run.device_bytes - search_.machine.available_bytes()),
        bytes_text(search_.machine.available_bytes()));
    add(std::move(run), refused.layout);
  }

  /// Adds the layout, one row at a time, if it fits. Few layers say where not,
  /// and how much is recomputed.
  bool add_fitting(Layout layout) {
    const int64_t rows = least_rows();
    std::optional<PlannedRun> run;
    if (estimates_layers_) {
      auto least = estimate_of(layout, rows).least_bytes();
      if (!least && layout.tensor > 1) {
        layout.sequence = false; // some models cannot, and some lengths
        least = estimate_of(layout, rows).least_bytes();
      }
      if (!least || *least > search_.machine.available_bytes()) {
        return false;
      }
      const auto found =
          estimate_of(layout, rows).least(search_.machine.available_bytes());
      if (!found || (has_host() && found->host_bytes > host_bytes())) {
        return false;
      }
      run = confirmed({layout, rows, *found});
    } else if (planned(
                   overrides_of(layout, rows, accumulate_of(layout, rows)),
                   all_recomputed())
                   .fits()) {
      run = least_recomputed(layout, rows);
    }
    if (!run || !run->fits()) {
      return false;
    }
    add(*std::move(run), layout);
    return true;
  }

  void add_bound(const Candidate& candidate) {
    PlannedRun run;
    run.is_bound = true;
    run.overrides = overrides_of(
        candidate.layout,
        candidate.rows,
        accumulate_of(candidate.layout, candidate.rows));
    run.recomputed = candidate.least.recomputed;
    run.layout = layout_text(candidate.layout);
    run.batch_size = candidate.rows;
    run.accumulate = accumulate_of(candidate.layout, candidate.rows);
    run.device_bytes = candidate.least.device_bytes;
    run.host_bytes = candidate.least.host_bytes;
    run.time = candidate.least.time;
    bounds_.push_back(std::move(run));
  }

  std::string layout_text(const Layout& layout) const {
    ParallelSizes sizes = given_.parallel.sizes;
    sizes.data = layout.replicas;
    sizes.tensor = layout.tensor;
    sizes.pipeline = layout.pipeline;
    sizes.context = context_of(layout);
    sizes.expert = expert_of(layout);
    return text_of(sizes, batches_of(layout));
  }

  /// Without estimates.
  void try_in_full(Layout layout) {
    std::optional<PlannedRun> best = try_batches(layout);
    if (!best && has_host() && !fixes_optimizer()) {
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
    for (int64_t rows = least_rows(); rows <= most_rows(); rows *= 2) {
      auto run = least_recomputed(layout, rows);
      if (run && run->stages.empty() && layout.tensor > 1 && layout.sequence) {
        layout.sequence = false; // some models cannot, and some lengths
        run = least_recomputed(layout, rows);
      }
      if (!run) {
        break; // the examples of a step cannot be divided so
      }
      add(*run, layout);
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
      return try_other(other, best.batch_size);
    };
    if (best.time.shards > best.time.compute &&
        best.time.exposed(&StepTime::shards) > kLeastGain * best.time.total()) {
      const int nodes =
          search_.machine.devices / search_.machine.ranks_of_node();
      if (layout.pipeline == 1 && nodes > 1 &&
          given_.parallel.sizes.expert == 1 &&
          given_.engine.sharding.shard_ranks == 0 &&
          batches_of(layout) % nodes == 0) {
        Layout other = layout;
        other.replicas = nodes; // sharded within a node
        try_one(other);
      }
      try_experts(layout, best.batch_size);
      for (const int zero_stage : {2, 1}) {
        Layout other = layout;
        other.zero_stage = zero_stage;
        if (!try_one(other)) {
          break; // stage 1 takes no less memory than stage 2
        }
      }
      Layout other = layout;
      other.budgeted_activations = spare_activations(best);
      add(planned(
              overrides_of(other, best.batch_size, best.accumulate),
              best.recomputed),
          other);
    }
    if (!has_host() || !best.recomputed.any()) {
      return;
    }
    if (!layout.optimizer_on_host && !fixes_optimizer()) {
      Layout other = layout;
      other.optimizer_on_host = true;
      try_one(other);
    }
    if (layout.pipeline == 1) {
      const PlannedRun full =
          planned(overrides_of(layout, best.batch_size, best.accumulate), {});
      if (!full.stages.empty()) {
        Layout other = layout;
        other.host_activations =
            with_spare(full.stages.front().activations_after_forward);
        add(planned(overrides_of(other, best.batch_size, best.accumulate), {}),
            other);
      }
    }
  }

  /// Ranks of a node with experts of their own, which are not gathered; as many
  /// as can be.
  void try_experts(const Layout& layout, int64_t rows) {
    if (!given_.has_experts || layout.pipeline > 1 ||
        given_.parallel.sizes.expert > 1) {
      return;
    }
    for (int expert = kMostExpertRanks; expert > 1; expert /= 2) {
      if (expert * layout.tensor > search_.machine.ranks_of_node() ||
          batches_of(layout) % expert != 0) {
        continue;
      }
      Layout other = layout;
      other.expert = expert;
      if (estimates_layers_) {
        const auto least =
            estimate_of(other, rows).least(search_.machine.available_bytes());
        if (!least) {
          continue;
        }
        if (try_other(other, rows)) {
          return;
        }
        continue;
      }
      const auto run = least_recomputed(other, rows);
      if (run && run->fits()) {
        add(*run, other);
        return;
      }
    }
  }

  /// Adds what the layout takes with as little repeated work as fits; where few
  /// layers say that it cannot be the fastest, that.
  /// @return whether it fits, as far as is known.
  bool try_other(const Layout& layout, int64_t rows) {
    if (!estimates_layers_ || layout.pipeline > 1) {
      const auto run = least_recomputed(layout, rows);
      if (run) {
        add(*run, layout);
      }
      return run && run->fits();
    }
    if (!divides(layout, rows)) {
      return false;
    }
    RunEstimate& estimate = estimate_of(layout, rows);
    const auto found = estimate.least(search_.machine.available_bytes());
    if (!found) {
      add_refused_bound({layout, rows, estimate.least_bytes().value_or(0)});
      return false;
    }
    if (found->host_bytes > host_bytes() && has_host()) {
      return false;
    }
    const Candidate candidate{layout, rows, *found};
    if (found->time.total() >= best_seconds()) {
      add_bound(candidate);
      return true;
    }
    std::optional<PlannedRun> run = confirmed(candidate);
    const bool fits = run && run->fits();
    if (run) {
      add(*std::move(run), layout);
    }
    return fits;
  }

  /// Of all moments of a step, with some to spare.
  static int64_t spare_activations(const PlannedRun& run) {
    int64_t most = 0;
    for (const StepMemoryPlan& stage : run.stages) {
      most = std::max(most, stage.peak.activations);
      for (const MemoryMoment& moment : stage.timeline) {
        most = std::max(most, moment.activations);
      }
    }
    return with_spare(most);
  }

  /// With host memory, and where that is not enough, disks.
  void try_all_budgets(Layout layout) {
    if (!has_host()) {
      return;
    }
    try_budgets(layout, least_rows());
    if (best() == nullptr && search_.machine.nvme_bytes) {
      layout.has_nvme_budget = true;
      try_budgets(layout, least_rows());
    }
  }

  /// The engine places what does not fit beside activations in host memory:
  /// state, then gradients, then weights. What activations take is found
  /// first, without a limit.
  /// @param known parts that fit, so that others before them are tried;
  /// nothing:
  ///   all are.
  void try_budgets(
      Layout layout,
      int64_t rows,
      const std::optional<RecomputedParts>& known = std::nullopt) {
    if (!divides(layout, rows)) {
      return;
    }
    UnlimitedRuns unlimited;
    std::optional<RecomputedParts> before;
    for (const RecomputedParts& parts :
         {RecomputedParts{},
          RecomputedParts{.operators = true},
          RecomputedParts{.layers = most_recomputed_ / 2, .operators = true},
          all_recomputed()}) {
      if (std::exchange(before, parts) == parts) {
        continue; // there are few layers, or none
      }
      if (known == parts) {
        return;
      }
      const auto alone = without_limit(layout, rows, parts, unlimited);
      if (!alone) {
        return;
      }
      const auto activations = static_cast<int64_t>(alone->spare_activations);
      if (activations > search_.machine.available_bytes()) {
        continue;
      }
      if (alone->compute >= best_seconds()) {
        return; // what is moved comes on top
      }
      auto [run, fitted] = budgeted(layout, rows, parts, activations);
      add(std::move(run), fitted);
      if (known && best() != nullptr) {
        return;
      }
    }
  }

  /// What does not fit beside so many bytes of activations is on the host; with
  /// more activations if there are.
  std::pair<PlannedRun, Layout> budgeted(
      Layout layout,
      int64_t rows,
      const RecomputedParts& parts,
      int64_t activations) {
    layout.budgeted_activations = activations;
    layout.has_host_budget = true;
    const auto run_of = [&](const Layout& each) {
      return planned(
          overrides_of(each, rows, accumulate_of(each, rows)), parts);
    };
    PlannedRun run = run_of(layout);
    const int64_t taken = run.fits() ? 0 : spare_activations(run);
    if (taken > activations && taken <= search_.machine.available_bytes()) {
      layout.budgeted_activations = taken; // more than few layers said
      run = run_of(layout);
    }
    return {std::move(run), layout};
  }

  /// What a run takes without a limit of the device's memory.
  struct Unlimited {
    double spare_activations = 0;
    double compute = 0; ///< StepTime::compute
    double device_bytes = 0;
  };
  /// With operators and attention, and with none or all layers recomputed.
  using UnlimitedRuns = std::map<std::tuple<bool, bool, bool>, Unlimited>;

  /// From few layers where they say it.
  /// @param runs those that are known; more are added.
  /// @return nothing if the layout is refused.
  std::optional<Unlimited> without_limit(
      const Layout& layout,
      int64_t rows,
      const RecomputedParts& parts,
      UnlimitedRuns& runs) {
    Layout free = layout;
    free.has_nvme_budget = false;
    free.on_device = true;
    const auto overrides =
        overrides_of(free, rows, accumulate_of(layout, rows));
    const auto planned_with =
        [&](const RecomputedParts& some,
            std::optional<int64_t> few_layers) -> std::optional<Unlimited> {
      const PlannedRun run = planned(overrides, some, few_layers);
      if (run.stages.empty()) {
        add(run, free);
        return std::nullopt;
      }
      return Unlimited{
          static_cast<double>(spare_activations(run)),
          run.time.compute,
          static_cast<double>(run.device_bytes)};
    };
    if (!plans_fewer_layers_ || layout.pipeline > 1) {
      return planned_with(parts, std::nullopt);
    }
    const auto at_end = [&](bool recomputes) -> std::optional<Unlimited> {
      const std::tuple key{parts.operators, parts.attention, recomputes};
      if (const auto found = runs.find(key); found != runs.end()) {
        return found->second;
      }
      const auto of = [&](int64_t layers) {
        return planned_with(parts.with_layers(recomputes ? layers : 0), layers);
      };
      const auto few = of(RunEstimate::kFew);
      const auto more = few ? of(RunEstimate::kMore) : std::nullopt;
      if (!more) {
        return std::nullopt;
      }
      return runs[key] = between(
                 *few,
                 *more,
                 static_cast<double>(layers_ - RunEstimate::kFew) /
                     (RunEstimate::kMore - RunEstimate::kFew));
    };
    const auto none = parts.layers < layers_ ? at_end(false) : Unlimited();
    const auto all = parts.layers > 0 ? at_end(true) : Unlimited();
    if (!none || !all) {
      return std::nullopt;
    }
    return between(
        *none,
        *all,
        static_cast<double>(parts.layers) / static_cast<double>(layers_));
  }

  /// On the line through `a` at 0 and `b` at 1.
  static Unlimited between(
      const Unlimited& a,
      const Unlimited& b,
      double share) {
    return {
        a.spare_activations +
            share * (b.spare_activations - a.spare_activations),
        a.compute + share * (b.compute - a.compute),
        a.device_bytes + share * (b.device_bytes - a.device_bytes)};
  }

  /// Without placements that the configuration has fixed.
  void lift_placements() {
    const auto& placement = given_.engine.placement;
    std::vector<std::string> lifted;
    const auto lift = [&](const char* name, const auto& tier) {
      if (tier && *tier != MemoryTier::kDevice) {
        lifted.push_back(formatted("placement.{}=auto", name));
      }
    };
    lift("optimizer", placement.optimizer);
    lift("gradients", placement.gradients);
    lift("parameters", placement.parameters);
    if (lifted.empty()) {
      return;
    }
    const PlannedRun* kept = best();
    const PlannedRun& model = kept == nullptr ? runs_.front() : *kept;
    std::vector<std::string> overrides = model.overrides;
    overrides.insert(overrides.end(), lifted.begin(), lifted.end());
    PlannedRun run = planned(overrides, model.recomputed);
    if (run.fits() && run.time.total() < 0.98 * best_seconds()) {
      std::string text;
      for (const std::string& each : lifted) {
        text += (text.empty() ? "" : " ") + each;
      }
      lifted_ = {text, std::move(run)};
    }
  }

  /// The smallest of each kind that fits.
  void try_changes() {
    const Machine& machine = search_.machine;
    // On a CPU, host memory is no other than the device's, unless it is given
    // as a part of its own.
    if ((machine.device != c10::kCPU || machine.host_bytes) &&
        machine.host_bytes.value_or(0) < kAnyHostBytes) {
      try_host_memory();
    }
    try_devices();
    try_lengths();
    if (changes_.size() >= kMostChanges) {
      return;
    }
    const auto& precision = given_.engine.precision;
    if (precision.parameters.value_or(at::kFloat) == at::kFloat) {
      try_key("precision.parameters=bfloat16");
    } else if (precision.gradients.value_or(at::kFloat) == at::kFloat) {
      try_key("precision.gradients=bfloat16");
    } else if (!given_.engine.optimizer.moment_dtype) {
      try_key("optimizer.moment_dtype=bfloat16");
    }
  }

  /// The longest sequences that fit.
  void try_lengths() {
    if (least_devices() > search_.machine.devices) {
      return; // what does not depend on them is too much
    }
    for (int times = 2; times <= kMostTimes; times *= 2) {
      const int64_t length = given_.max_length / times;
      if (length < 1 || try_key(formatted("model.max_length={}", length))) {
        break;
      }
    }
  }

  /// The least host memory of a node with which something fits, in whole MiB,
  /// or in whole GiB where it is not less than one; at most 3 % more.
  void try_host_memory() {
    PlanSearch other = search_;
    other.machine.host_bytes = kAnyHostBytes;
    Search smaller(other, few_layer_runs_); // whose host memory changes
    const auto of_node = [&](double bytes_of_rank) {
      return std::max<int64_t>(
          1,
          static_cast<int64_t>(bytes_of_rank) *
              search_.machine.ranks_of_node());
    };
    // What devices lack has to be somewhere, as far as few layers say it.
    const std::optional<double> lack = smaller.least_lack_on_host();
    std::optional<HostMemory> found;
    if (lack) {
      const int64_t bytes = of_node(std::max(*lack, 1.0));
      found = host_memory_from(other, smaller, shift_of(bytes), bytes);
    }
    std::optional<PlannedRun> first;
    if (!found) {
      other.machine.host_bytes = kAnyHostBytes;
      first = fitting_with(other);
      if (first) {
        const int64_t least = smaller.least_host_bytes();
        const int64_t bytes =
            of_node(static_cast<double>(std::min(first->host_bytes, least)));
        found = host_memory_up_to(other, smaller, shift_of(bytes), bytes);
      }
    }
    dry_runs_ += smaller.dry_runs_;
    if (found) {
      changes_.push_back(
          {formatted(
               "--host-memory {}{}",
               found->units,
               found->shift == kMibShift ? "MiB" : "GiB"),
           std::move(found->run)});
    } else if (first) {
      add_host_change(other, *first);
    }
  }

  /// Of a node, in units of `1 << shift` bytes, and what fits with it.
  struct HostMemory {
    int64_t units = 0;
    int shift = kGibShift;
    PlannedRun run;
  };

  static int shift_of(int64_t bytes) {
    return bytes < int64_t{1} << kGibShift ? kMibShift : kGibShift;
  }

  /// The least from so many bytes on, in steps of a kHostAccuracy-th: engines
  /// refuse what is too little before they run anything.
  /// @param other what `smaller` searches; its host memory is changed.
  /// @return nothing if some steps are not enough.
  std::optional<HostMemory> host_memory_from(
      PlanSearch& other,
      Search& smaller,
      int shift,
      int64_t bytes) {
    constexpr int kMostSteps = 8;
    int64_t units = ((bytes - 1) >> shift) + 1;
    int64_t too_few = 0;
    for (int step = 0; step < kMostSteps; ++step) {
      other.machine.host_bytes = units << shift;
      if (std::optional<PlannedRun> run = smaller.fitting_on_host()) {
        return fewest_units(
            other, smaller, {units, shift, *std::move(run)}, too_few);
      }
      too_few = units;
      units += std::max<int64_t>(1, units / kHostAccuracy);
    }
    return std::nullopt;
  }

  /// The same, from what is enough without limits on.
  std::optional<HostMemory> host_memory_up_to(
      PlanSearch& other,
      Search& smaller,
      int shift,
      int64_t bytes) {
    const int64_t units = ((bytes - 1) >> shift) + 1;
    other.machine.host_bytes = units << shift;
    std::optional<PlannedRun> run = smaller.fitting_on_host();
    if (!run) {
      return std::nullopt;
    }
    return fewest_units(
        other, smaller, {units, shift, *std::move(run)}, /*too_few=*/0);
  }

  /// Between what is too little and `enough`, as accurate as is said; with less
  /// that is recomputed if that fits.
  HostMemory fewest_units(
      PlanSearch& other,
      Search& smaller,
      HostMemory enough,
      int64_t too_few) {
    const int64_t accuracy =
        enough.shift == kGibShift
            ? std::max<int64_t>(1, enough.units / kHostAccuracy)
            : 1;
    while (enough.units - too_few > accuracy) { // each needs a run
      const int64_t middle = (enough.units + too_few) / 2;
      other.machine.host_bytes = middle << enough.shift;
      if (std::optional<PlannedRun> run = smaller.fitting_on_host()) {
        enough.units = middle;
        enough.run = *std::move(run);
      } else {
        too_few = middle;
      }
    }
    other.machine.host_bytes = enough.units << enough.shift;
    const auto better =
        of_search(other, [&](Search& search) -> std::optional<PlannedRun> {
          const PlannedRun* run =
              search.least_recomputed_on_host(enough.run, smaller);
          return run == nullptr ? std::nullopt : std::optional(*run);
        });
    if (better) {
      enough.run = *better;
    }
    return enough;
  }

  /// In the layout of a run that recomputes all, what fits with less of it;
  /// null if nothing does.
  const PlannedRun* least_recomputed_on_host(
      const PlannedRun& run,
      const Search& found_by) {
    for (const Layout& layout : flat_layouts()) {
      if (found_by.fitting_layout_ != ranks_of(layout)) {
        continue;
      }
      Layout on_host = layout;
      on_host.optimizer_on_host = true;
      if (!fixes_optimizer() && add_fitting(on_host)) {
        return best();
      }
      try_budgets(layout, least_rows(), run.recomputed);
      if (best() != nullptr) {
        return best();
      }
    }
    return nullptr;
  }

  /// Of a rank, of the runs that take the least memory of a device.
  int64_t least_host_bytes() {
    int64_t least = std::numeric_limits<int64_t>::max();
    each_least_on_host([&](const PlannedRun& run) {
      least = std::min(least, run.host_bytes);
      return false;
    });
    return least;
  }

  std::optional<PlannedRun> fitting_on_host() {
    std::optional<PlannedRun> fitting;
    each_least_on_host([&](const PlannedRun& run) {
      fitting = run;
      return true;
    });
    return fitting;
  }

  /// What a device lacks where all that can be is on the host, by few layers;
  /// nothing: no layout can be so, or nothing is lacking.
  std::optional<double> least_lack_on_host() {
    std::optional<double> least;
    for (const auto& [layout, alone] : least_on_host()) {
      const double lack =
          alone.device_bytes -
          static_cast<double>(search_.machine.available_bytes());
      least = std::min(least.value_or(lack), lack);
    }
    return least && *least > 0 ? least : std::nullopt;
  }

  /// Calls `found` with runs that fit and take the least memory of a device:
  /// all that can be is recomputed, and what does not fit is in host memory.
  /// Without pipeline stages, from those with the fewest tensor ranks.
  /// @return whether `found` was true, which ends it.
  bool each_least_on_host(
      const std::function<bool(const PlannedRun& run)>& found) {
    const RecomputedParts all = all_recomputed();
    const int64_t rows = least_rows();
    for (const auto& [layout, alone] : least_on_host()) {
      if (never_on_host_.contains(ranks_of(layout))) {
        continue;
      }
      const PlannedRun run =
          budgeted(
              layout, rows, all, static_cast<int64_t>(alone.spare_activations))
              .first;
      if (run.fits()) {
        fitting_layout_ = ranks_of(layout);
        if (found(run)) {
          return true;
        }
      }
      if (!run.fits() && search_.machine.host_bytes == kAnyHostBytes) {
        never_on_host_.insert(ranks_of(layout)); // nor with less of it
      }
    }
    return false;
  }

  /// Layouts for each_least_on_host(), without those of which few layers say
  /// that more than a kHostAccuracy-th more does not fit on the device.
  std::vector<std::pair<Layout, Unlimited>> least_on_host() {
    const int64_t available = search_.machine.available_bytes();
    std::vector<std::pair<Layout, Unlimited>> layouts;
    double least = std::numeric_limits<double>::infinity();
    for (const Layout& layout : flat_layouts()) {
      const auto alone = without_limit(
          layout,
          least_rows(),
          all_recomputed(),
          unlimited_on_host_[ranks_of(layout)]);
      if (alone &&
          static_cast<int64_t>(alone->spare_activations) <= available) {
        layouts.emplace_back(layout, *alone);
        least = std::min(least, alone->device_bytes - double(available));
      }
    }
    if (plans_fewer_layers_ && least > 0) {
      std::erase_if(layouts, [&](const auto& each) {
        return each.second.device_bytes - double(available) >
               least * (1 + 1.0 / kHostAccuracy);
      });
    }
    return layouts;
  }

  /// As many devices as have room for weights, gradients and optimizer state,
  /// which take the least where nothing is held twice: a bound of those with
  /// which something fits. 0: not known.
  int64_t least_devices() const {
    const Machine& machine = search_.machine;
    if (!nearest_ || machine.host_bytes || nearest_->stages.size() != 1) {
      return 0;
    }
    const MemoryBytes& planned = nearest_->stages.front().planned.at(
        static_cast<size_t>(MemoryTier::kDevice));
    int64_t state = 0;
    for (const MemoryPurpose purpose :
         {MemoryPurpose::kParameters,
          MemoryPurpose::kGradients,
          MemoryPurpose::kOptimizerState}) {
      state += planned.at(static_cast<size_t>(purpose));
    }
    const bool is_divided = nearest_->residency == "zero 3" &&
                            nearest_->layout.find("data") == std::string::npos;
    return is_divided
               ? (state * machine.devices - 1) / machine.available_bytes() + 1
               : 0;
  }

  /// The least number of devices with which something fits, up to kMostTimes as
  /// many; of several nodes, whole ones.
  void try_devices() {
    const Machine& machine = search_.machine;
    const int64_t least = least_devices();
    const auto suffice = [&](int devices) {
      return devices >= least && may_fit_on(devices);
    };
    int enough = 0;
    for (int times = 2; times <= kMostTimes && enough == 0; times *= 2) {
      enough = suffice(machine.devices * times) ? machine.devices * times : 0;
    }
    if (enough == 0) {
      return;
    }
    const int step =
        enough <= machine.devices_per_node ? 1 : machine.devices_per_node;
    int too_few = enough / 2 / step;
    int most = (enough - 1) / step + 1; // `enough`
    while (most - too_few > 1) {
      const int middle = (most + too_few) / 2;
      (suffice(middle * step) ? most : too_few) = middle;
    }
    // Few layers may say a little less than all take.
    constexpr int kMostTries = 3;
    for (int more = 0; more < kMostTries; ++more) {
      const int devices = std::min(
          (most + more) * step, std::max(enough, machine.devices * kMostTimes));
      if (auto run = found_on(devices)) {
        changes_.push_back(
            {formatted("--devices {}", devices),
             std::move(*run),
             /*is_fastest=*/true});
        return;
      }
    }
  }

  PlanSearch with_devices(int devices) const {
    PlanSearch other = search_;
    other.machine.devices = devices;
    return other;
  }

  /// Where few layers do not say it, whether something does.
  bool may_fit_on(int devices) {
    return of_search(with_devices(devices), [](Search& search) {
      return search.bounds_memory() ? search.may_fit()
                                    : search.first_that_fits() != nullptr;
    });
  }

  /// What a search of so many devices finds.
  std::optional<PlannedRun> found_on(int devices) {
    return of_search(
        with_devices(devices), [](Search& search) -> std::optional<PlannedRun> {
          const PlannedRun* run = search.found();
          return run == nullptr ? std::nullopt : std::optional(*run);
        });
  }

  /// What `run` takes of host memory, in whole MiB if it is less than a GiB,
  /// else, and where that is not enough for it, in GiB.
  void add_host_change(PlanSearch& other, const PlannedRun& run) {
    const int64_t bytes = run.host_bytes * search_.machine.ranks_of_node();
    for (const int shift :
         {bytes < int64_t{1} << kGibShift ? kMibShift : kGibShift, kGibShift}) {
      const int64_t size = ((bytes - 1) >> shift) + 1;
      other.machine.host_bytes = size << shift;
      PlannedRun exact = with_host_bytes(other, run);
      if (exact.fits()) {
        changes_.push_back(
            {formatted(
                 "--host-memory {}{}",
                 size,
                 shift == kMibShift ? "MiB" : "GiB"),
             std::move(exact)});
        return;
      }
    }
  }

  /// The same run with the host memory of `other`.
  PlannedRun with_host_bytes(const PlanSearch& other, const PlannedRun& run) {
    std::vector<std::string> overrides = run.overrides;
    overrides.resize(
        overrides.size() - run.recomputed.overrides().size()); // planned() adds
    for (std::string& override : overrides) {
      if (override.starts_with("memory.host_bytes=")) {
        override = formatted(
            "memory.host_bytes={}", other.machine.host_bytes_of_rank());
      }
    }
    return Search(other, few_layer_runs_).planned(overrides, run.recomputed);
  }

  bool try_key(const std::string& override) {
    PlanSearch other = search_;
    other.overrides.push_back(override);
    if (auto run = fitting_with(other)) {
      changes_.push_back({override, std::move(*run)});
      return true;
    }
    return false;
  }

  /// first_that_fits() of another search, where anything may fit.
  std::optional<PlannedRun> fitting_with(const PlanSearch& other) {
    return of_search(other, [](Search& search) -> std::optional<PlannedRun> {
      const PlannedRun* run =
          search.may_fit() ? search.first_that_fits() : nullptr;
      return run == nullptr ? std::nullopt : std::optional(*run);
    });
  }

  /// What `find` finds in another search; nothing where the configuration or
  /// model does not allow that one.
  template <typename Find>
  auto of_search(const PlanSearch& other, const Find& find)
      -> decltype(find(std::declval<Search&>())) {
    std::optional<Search> search;
    decltype(find(*search)) found{};
    try {
      found = find(search.emplace(other, few_layer_runs_));
    } catch (const std::exception&) {
      found = {};
    }
    dry_runs_ += search ? search->dry_runs_ : 0;
    return found;
  }

  bool fixes_optimizer() const {
    return given_.engine.placement.optimizer.has_value();
  }

  int64_t host_bytes() const {
    return search_.machine.host_bytes_of_rank();
  }

  bool divides(const Layout& layout, int64_t rows) const {
    const int64_t of_all = rows * batches_of(layout);
    return examples_ % of_all == 0 && examples_ / of_all >= layout.pipeline;
  }

  int batches_of(const Layout& layout) const {
    return search_.machine.devices /
           (layout.tensor * layout.pipeline * context_of(layout));
  }

  /// Ranks that divide layers, and those that divide sequences.
  std::pair<int, int> ranks_of(const Layout& layout) const {
    return {layout.tensor, context_of(layout)};
  }
  int context_of(const Layout& layout) const {
    return layout.context.value_or(given_.parallel.sizes.context);
  }
  int expert_of(const Layout& layout) const {
    const int expert = layout.expert.value_or(given_.parallel.sizes.expert);
    return batches_of(layout) * context_of(layout) % expert == 0 ? expert : 1;
  }

  int64_t accumulate_of(const Layout& layout, int64_t rows) const {
    return examples_ / (rows * batches_of(layout));
  }

  /// With as little repeated work as fits.
  std::optional<PlannedRun> least_recomputed(
      const Layout& layout,
      int64_t rows) {
    if (!divides(layout, rows)) {
      return std::nullopt;
    }
    const auto overrides =
        overrides_of(layout, rows, accumulate_of(layout, rows));
    return recomputation_.least(
        [&](const RecomputedParts& parts) { return planned(overrides, parts); },
        /*inputs_are_full=*/layout.tensor > 1 && !layout.sequence);
  }

  std::vector<std::string> overrides_of(
      const Layout& layout,
      int64_t rows,
      int64_t accumulate) const {
    const Machine& machine = search_.machine;
    std::vector<std::string> overrides{
        formatted("parallel.shard={}", batches_of(layout) / layout.replicas),
        formatted("parallel.data={}", layout.replicas),
        formatted("parallel.context={}", context_of(layout)),
        formatted("parallel.expert={}", expert_of(layout)),
        formatted("parallel.tensor={}", layout.tensor),
        formatted("parallel.pipeline={}", layout.pipeline),
        formatted("parallel.sequence={}", layout.tensor > 1 && layout.sequence),
        formatted("training.batch_size={}", rows),
        formatted("training.accumulate={}", accumulate)};
    if (layout.optimizer_on_host || layout.host_activations ||
        layout.has_host_budget) {
      overrides.push_back(
          formatted("memory.host_bytes={}", machine.host_bytes_of_rank()));
    }
    if (layout.has_nvme_budget) {
      overrides.push_back(formatted("memory.nvme_path={}", machine.nvme_path));
      overrides.push_back(
          formatted("memory.nvme_bytes={}", machine.nvme_bytes_of_rank()));
    }
    if (layout.on_device) {
      overrides.insert(overrides.end(), kOnDevice.begin(), kOnDevice.end());
    } else if (layout.optimizer_on_host) {
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
      overrides.push_back(formatted(
          "memory.device_bytes={}",
          machine.device_bytes - machine.margin_bytes));
      overrides.push_back(formatted(
          "memory.activation_bytes={}",
          machine.reserved_bytes + *layout.budgeted_activations));
    }
    return overrides;
  }

  /// @param few_layers plans a model with so many.
  PlannedRun planned(
      const std::vector<std::string>& overrides,
      const RecomputedParts& recomputed,
      std::optional<int64_t> few_layers = std::nullopt) {
    PlannedRun run = named(overrides, recomputed);
    std::vector<std::string> all = search_.overrides;
    all.insert(all.end(), run.overrides.begin(), run.overrides.end());
    std::string key;
    if (few_layers) {
      // Estimates say what is too much; so the same whatever there is.
      for (size_t i = search_.overrides.size(); i < all.size(); ++i) {
        if (all[i].starts_with("memory.host_bytes=")) {
          all[i] = formatted(
              "memory.host_bytes={}",
              kAnyHostBytes / search_.machine.ranks_of_node());
        }
      }
      key = formatted("{} {}", search_.machine.devices, *few_layers);
      const bool is_on_device = keeps_on_device(run.overrides);
      for (const std::string& override : all) {
        if (!is_on_device || !is_of_device(override)) {
          key += "\n" + override;
        }
      }
      const auto known = few_layer_runs_->find(key);
      if (known != few_layer_runs_->end()) {
        PlannedRun same = known->second;
        same.overrides = std::move(run.overrides);
        same.changed = std::move(run.changed);
        same.problem.clear();
        check_memory(same);
        return same;
      }
    }
    if (search_.progress) {
      search_.progress(dry_runs_, best());
    }
    ++dry_runs_;
    try {
      plan_into(run, search_.read(all), few_layers);
    } catch (const Error& error) {
      run.problem = "refused: " + first_line(error.what());
    } catch (const std::exception& error) { // of LibTorch, or the model
      if (overrides.empty()) {
        throw; // the configuration as it is
      }
      run.problem = "refused: " + first_line(error.what());
    }
    if (!few_layers) {
      note_nearest(run);
    } else if (!run.stages.empty()) {
      keep_sums(run);
      (*few_layer_runs_)[key] = run;
    }
    return run;
  }

  /// Whether a run with these overrides has all on its device, with those of
  /// Layout::on_device or without them.
  bool keeps_on_device(const std::vector<std::string>& overrides) const {
    const auto& placement = given_.engine.placement;
    const MemoryBudget& memory = given_.engine.memory;
    const auto is_device = [](const std::optional<MemoryTier>& tier) {
      return tier.value_or(MemoryTier::kDevice) == MemoryTier::kDevice;
    };
    return !memory.device_bytes && !memory.host_bytes &&
           is_device(placement.optimizer) && is_device(placement.gradients) &&
           is_device(placement.parameters) &&
           std::none_of(
               overrides.begin(), overrides.end(), [](const auto& override) {
                 return !is_of_device(override) &&
                        (override.starts_with("memory.") ||
                         override.starts_with("placement."));
               });
  }

  /// Drops what is large, and not a part of an estimate.
  static void keep_sums(PlannedRun& run) {
    for (StepMemoryPlan& stage : run.stages) {
      for (const MemoryMoment& moment : stage.timeline) {
        stage.peak.activations =
            std::max(stage.peak.activations, moment.activations);
      }
      stage.timeline = {};
      stage.operators = {};
      stage.kernels = {};
      stage.calls = {};
      stage.collectives = {};
    }
  }

  /// A run that is not planned.
  PlannedRun named(
      const std::vector<std::string>& overrides,
      const RecomputedParts& recomputed) const {
    PlannedRun run;
    run.overrides = overrides;
    run.recomputed = recomputed;
    const auto more = recomputed.overrides();
    run.overrides.insert(run.overrides.end(), more.begin(), more.end());
    for (const std::string& override : run.overrides) {
      const size_t equals = override.find('=');
      const auto value = values_.find(override.substr(0, equals));
      if (value == values_.end() ||
          value->second != override.substr(equals + 1)) {
        run.changed.push_back(override);
      }
    }
    name(run);
    return run;
  }

  /// Says what a run is before it is planned, which may be refused.
  void name(PlannedRun& run) const {
    ParallelSizes sizes = given_.parallel.sizes;
    run.batch_size = given_.batch_size;
    run.accumulate = given_.accumulate;
    const std::pair<std::string_view, int*> of_ranks[] = {
        {"parallel.shard=", &sizes.shard},
        {"parallel.data=", &sizes.data},
        {"parallel.context=", &sizes.context},
        {"parallel.expert=", &sizes.expert},
        {"parallel.tensor=", &sizes.tensor},
        {"parallel.pipeline=", &sizes.pipeline}};
    const std::pair<std::string_view, int64_t*> of_rows[] = {
        {"training.batch_size=", &run.batch_size},
        {"training.accumulate=", &run.accumulate}};
    for (const std::string& override : run.overrides) {
      const auto take = [&](const auto& keys) {
        for (const auto& [key, value] : keys) {
          if (override.starts_with(key)) {
            std::from_chars(
                override.data() + key.size(),
                override.data() + override.size(),
                *value);
          }
        }
      };
      take(of_ranks);
      take(of_rows);
    }
    run.layout = text_of(sizes, given_batches(sizes, search_.machine.devices));
  }

  /// Keeps what lacks the least of all that were planned.
  void note_nearest(const PlannedRun& run) {
    if (!run.stages.empty() && !run.fits() && best() == nullptr &&
        (!nearest_ || lack_of(run) < lack_of(*nearest_))) {
      nearest_ = run;
    }
  }

  /// Bytes of a rank that are too many.
  int64_t lack_of(const PlannedRun& run) const {
    return std::max<int64_t>(
               0, run.device_bytes - search_.machine.available_bytes()) +
           (has_host() ? std::max<int64_t>(0, run.host_bytes - host_bytes())
                       : 0);
  }

  void plan_into(
      PlannedRun& run,
      const RunSettings& config,
      std::optional<int64_t> few_layers) const {
    const Machine& machine = search_.machine;
    const ParallelSizes& sizes = config.parallel.sizes;
    const int64_t batches = given_batches(sizes, machine.devices);
    run.batch_size = config.batch_size;
    run.accumulate = config.accumulate;
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
    run.layout = text_of(sizes, batches);
    EstimatedRun estimated;
    estimated.stages = sizes.pipeline;
    estimated.accumulate = run.accumulate;
    // More micro-batches than a pipeline has in flight are like these.
    estimated.schedule = config.parallel.schedule;
    estimated.chunks = config.parallel.chunks;
    estimated.planned_accumulate = std::min<int64_t>(
        run.accumulate, planned_micro_batches(config.parallel));
    estimated.in_16bit =
        config.engine.precision.parameters.value_or(at::kFloat) != at::kFloat;
    estimated.overlap = config.engine.optimizer.overlap;
    estimated.updates_in_backward = config.engine.update_in_backward;
    run.stages = config.plan(
        machine,
        {.accumulate = estimated.planned_accumulate,
         .layers = few_layers,
         .alike_stages_once = alike_stages_once_});
    const std::optional<std::string> assumed = assumed_rate(machine.rates);
    for (StepMemoryPlan& stage : run.stages) {
      if (assumed) {
        stage.assumptions.push_back(*assumed);
      }
      run.device_bytes = std::max(run.device_bytes, stage.peak_bytes);
      run.host_bytes = std::max(
          run.host_bytes,
          total_bytes(stage.planned[static_cast<size_t>(MemoryTier::kHost)]));
      run.nvme_bytes = std::max(
          run.nvme_bytes,
          total_bytes(stage.planned[static_cast<size_t>(MemoryTier::kNvme)]));
    }
    run.flops = run.stages.front().flops() *
                static_cast<double>(run.accumulate) /
                static_cast<double>(estimated.planned_accumulate);
    run.time = estimate_step(run.stages, estimated, machine);
    run.estimated = estimated;
    const auto tokens =
        static_cast<double>(config.tokens * run.accumulate * batches);
    run.tokens_per_s = tokens / run.time.total();
    run.counts_tokens = config.tokens != config.batch_size;
    check_memory(run);
  }

  void check_memory(PlannedRun& run) const {
    const Machine& machine = search_.machine;
    if (run.device_bytes > machine.available_bytes()) {
      const auto largest = std::max_element(
          run.stages.begin(),
          run.stages.end(),
          [](const auto& a, const auto& b) {
            return a.peak_bytes < b.peak_bytes;
          });
      run.problem = formatted(
          "{} above the {} of a device; {} of it are activations{}",
          bytes_text(run.device_bytes - machine.available_bytes()),
          bytes_text(machine.available_bytes()),
          bytes_text(largest->peak.activations),
          largest->peak.module.empty() ? "" : ", in " + largest->peak.module);
    } else if (
        machine.host_bytes && run.host_bytes > machine.host_bytes_of_rank()) {
      run.problem = formatted(
          "{} of host memory for a rank, {} above the {} that --host-memory leaves it",
          bytes_text(run.host_bytes),
          bytes_text(run.host_bytes - machine.host_bytes_of_rank()),
          bytes_text(machine.host_bytes_of_rank()));
    }
  }

  void add(PlannedRun run, const Layout& layout) {
    if (has_given_ && !runs_.empty() && run.changed.empty()) {
      return; // the configuration as it is, which is there
    }
    layouts_.push_back(layout);
    runs_.push_back(std::move(run));
  }

  PlanAnswer finished() {
    PlanAnswer answer;
    answer.dry_runs = dry_runs_;
    answer.given_examples = given_examples_;
    answer.examples = examples_;
    answer.can_share_examples = can_share_examples_;
    if (const PlannedRun* run = preferred()) {
      answer.best = static_cast<size_t>(run - runs_.data());
    } else if (nearest_) {
      const auto known =
          std::find_if(runs_.begin(), runs_.end(), [&](const auto& run) {
            return run.overrides == nearest_->overrides;
          });
      answer.nearest = static_cast<size_t>(known - runs_.begin());
      if (known == runs_.end()) {
        runs_.push_back(std::move(*nearest_));
      }
    }
    answer.runs = std::move(runs_);
    answer.runs.insert(
        answer.runs.end(),
        std::make_move_iterator(bounds_.begin()),
        std::make_move_iterator(bounds_.end()));
    answer.lifted = std::move(lifted_);
    answer.changes = std::move(changes_);
    return answer;
  }

  const PlanSearch& search_;
  std::shared_ptr<FewLayerRuns> few_layer_runs_;
  RunSettings given_;
  std::map<std::string, std::string> values_; ///< current_values()
  int64_t layers_;
  int64_t most_recomputed_; ///< layers
  bool plans_fewer_layers_;
  bool estimates_layers_;
  bool tries_contexts_; ///< other numbers of context ranks than the given one
  bool alike_stages_once_;
  RecomputationSearch recomputation_;
  int64_t examples_ = 0; ///< of a step
  int64_t given_examples_ = 0; ///< of the configuration as it is
  bool can_share_examples_ = true;
  bool has_given_ = true; ///< `runs_` begins with the configuration as it is
  int64_t dry_runs_ = 0;
  std::map<EstimateKey, std::unique_ptr<RunEstimate>> estimates_;
  /// each_least_on_host(), by ranks_of().
  std::map<std::pair<int, int>, UnlimitedRuns> unlimited_on_host_;
  std::set<std::pair<int, int>> never_on_host_; ///< ranks_of()
  /// ranks_of() of the last that each_least_on_host() has found.
  std::optional<std::pair<int, int>> fitting_layout_;
  std::vector<PlannedRun> runs_;
  std::vector<Layout> layouts_; ///< of `runs_`
  std::vector<PlannedRun> bounds_;
  std::optional<PlannedRun> nearest_; ///< note_nearest()
  std::vector<Refused> refused_;
  std::vector<Refused> refused_on_device_;
  std::optional<PlannedChange> lifted_;
  std::vector<PlannedChange> changes_;
};

} // namespace

PlanAnswer search_plans(const PlanSearch& search) {
  return Search(search, std::make_shared<FewLayerRuns>()).run();
}

} // namespace tessera::planner
