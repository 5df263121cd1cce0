// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/step_plan.h"

#include "tessera/planner/rank_steps.h"
#include "tessera/runtime/comm/simulated_job.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/sharding/interception/page_key.h"
#include "tessera/sharding/lazy/replace_storage.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace tessera {

namespace {

/// Follows the heap of a dry run: its peak and, while a step is recorded, its
/// course.
class MemoryRecorder {
 public:
  explicit MemoryRecorder(runtime::DryRun& run)
      : run_(run), before_(run.heap().live_bytes()) {
    run.heap().watch(
        [this](int64_t live, int64_t change) { on_change(live, change); });
  }
  ~MemoryRecorder() {
    run_.heap().watch(nullptr);
  }
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  void begin(const planner::RankSteps& steps) {
    steps_ = &steps;
    timeline_.clear();
    take(run_.heap().live_bytes());
  }

  /// The engines are about to go; what is freed then is not recorded.
  void end() {
    steps_ = nullptr;
  }

  MemoryMoment now() const {
    return moment(run_.heap().live_bytes());
  }
  const MemoryMoment& peak() const {
    return peak_;
  }
  std::vector<MemoryMoment> timeline() {
    take(run_.heap().live_bytes());
    std::vector<MemoryMoment> coarse;
    const int64_t least = peak_.total() / 1000;
    for (MemoryMoment& each : timeline_) {
      if (coarse.empty() ||
          std::abs(each.total() - coarse.back().total()) > least) {
        coarse.push_back(std::move(each));
      }
    }
    return coarse;
  }

 private:
  MemoryMoment moment(int64_t live) const {
    MemoryMoment now{run_.module(), run_.running()};
    if (steps_ != nullptr) {
      now.engine = steps_->allocated_memory(MemoryTier::kDevice);
      // Of the process, not of LibTorch's allocator.
      now.engine[static_cast<size_t>(MemoryPurpose::kLibraries)] = 0;
    }
    now.activations = live - before_ - total_bytes(now.engine);
    now.calls = run_.calls().size();
    return now;
  }

  void on_change(int64_t live, int64_t change) {
    if (steps_ == nullptr) {
      return;
    }
    if (live - before_ > peak_.total()) {
      peak_ = moment(live);
    }
    drift_ += std::abs(change);
    if (drift_ > peak_.total() / 4000) {
      take(live);
    }
  }

  void take(int64_t live) {
    timeline_.push_back(moment(live));
    drift_ = 0;
  }

  runtime::DryRun& run_;
  int64_t before_;
  const planner::RankSteps* steps_ = nullptr;
  MemoryMoment peak_;
  std::vector<MemoryMoment> timeline_;
  int64_t drift_ = 0;
};

/// @param prefix of the names.
void name_modules(
    runtime::DryRun& run,
    const torch::nn::Module& module,
    const std::string& prefix = "") {
  for (const auto& item : module.named_parameters()) {
    const std::string& name = item.key();
    const size_t dot = name.rfind('.');
    run.name_storage(
        item.value(),
        prefix + (dot == std::string::npos ? "" : name.substr(0, dot)));
  }
}

} // namespace

double StepMemoryPlan::flops() const {
  return std::accumulate(
      operators.begin(),
      operators.end(),
      0.0,
      [](double sum, const OperatorWork& work) { return sum + work.flops; });
}

namespace {

InitOptions without_cuda() {
  InitOptions options;
  options.use_cuda = false;
  return options;
}

/// The steps of one rank.
class PlannedRank {
 public:
  PlannedRank(
      const PlannedTraining& training,
      const EngineOptions& options,
      const PlannedJob& job,
      const std::shared_ptr<runtime::SimulatedJob>& simulation)
      : job_(job),
        simulation_(simulation),
        run_(job.device),
        recorder_(run_),
        steps_(training, options, job, simulation, without_cuda()) {
    name_modules(run_, steps_.module());
    if (const torch::nn::Module* other = steps_.beside().model) {
      name_modules(run_, *other, "beside.");
    }
  }
  ~PlannedRank() {
    recorder_.end();
  }
  PlannedRank(const PlannedRank&) = delete;
  PlannedRank& operator=(const PlannedRank&) = delete;

  StepMemoryPlan plan() {
    StepMemoryPlan result;
    result.rank = job_.rank;
    for (size_t tier = 0; tier < kMemoryTierCount; ++tier) {
      result.planned[tier] =
          steps_.planned_memory(static_cast<MemoryTier>(tier));
    }
    for (int step = 0; step < job_.steps; ++step) {
      run_.forget_work();
      recorder_.begin(steps_);
      simulation_->forget_work(job_.rank);
      const CopiedBytes before = steps_.copied_activations();
      steps_.run(step, [&](int number) {
        if (number == 0) {
          result.activations_after_forward = recorder_.now().activations;
        }
      });
      const CopiedBytes after = steps_.copied_activations();
      result.activation_copies = {
          after.to_host - before.to_host, after.to_device - before.to_device};
    }
    // Their limit may be all that other state leaves of host memory.
    const auto host = static_cast<size_t>(MemoryTier::kHost);
    const auto saved = static_cast<size_t>(MemoryPurpose::kActivations);
    result.planned[host][saved] =
        steps_.measured_memory(MemoryTier::kHost)[saved];
    result.timeline = recorder_.timeline();
    result.peak = recorder_.peak();
    result.peak_bytes = result.peak.total();
    result.operators = run_.work();
    result.kernels = run_.kernels();
    result.calls = run_.calls();
    result.collectives = simulation_->work(job_.rank);
    result.assumptions = {run_.assumptions().begin(), run_.assumptions().end()};
    return result;
  }

 private:
  PlannedJob job_;
  std::shared_ptr<runtime::SimulatedJob> simulation_;
  runtime::DryRun run_;
  MemoryRecorder recorder_;
  planner::RankSteps steps_;
};

} // namespace

StepMemoryPlan planner::plan_rank(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const std::shared_ptr<runtime::SimulatedJob>& simulation) {
  return PlannedRank(training, options, job, simulation).plan();
}

std::vector<StepMemoryPlan> planner::plan_stages(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const std::vector<int>& stand_ins) {
  TESSERA_CHECK(
      job.steps > 0 && job.accumulate > 0,
      "plan: {} steps of {} micro-batches; both must be at least 1",
      job.steps,
      job.accumulate);
  const ParallelMesh mesh(job.parallel.sizes, job.world_size, job.world_size);
  const std::vector<int> ranks = mesh.ranks(ParallelGroup::kPipeline, job.rank);
  const auto run_by = [&](size_t stage) {
    return stand_ins.empty() ? stage : static_cast<size_t>(stand_ins[stage]);
  };
  std::vector<int> present;
  std::map<int, int> absent;
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    if (run_by(stage) == stage) {
      present.push_back(ranks[stage]);
    } else {
      absent[ranks[stage]] = ranks[run_by(stage)];
    }
  }
  const auto simulation = std::make_shared<runtime::SimulatedJob>(
      present,
      /*device=*/std::nullopt,
      /*longest_wait=*/std::chrono::minutes(1),
      absent);
  std::vector<std::future<StepMemoryPlan>> stages;
  for (const int rank : present) {
    PlannedJob rank_job = job;
    rank_job.rank = rank;
    stages.push_back(std::async(std::launch::async, [&, rank_job] {
      try {
        return planner::plan_rank(training, options, rank_job, simulation);
      } catch (const std::exception& error) {
        simulation->end(error.what());
        throw;
      }
    }));
  }
  // All have to have ended before one throws: they use the arguments. That
  // which failed first has told the others.
  for (const auto& stage : stages) {
    stage.wait();
  }
  std::map<int, StepMemoryPlan> by_rank;
  for (size_t i = 0; i < stages.size(); ++i) {
    by_rank[present[i]] = stages[i].get();
  }
  std::vector<StepMemoryPlan> plans;
  for (size_t stage = 0; stage < ranks.size(); ++stage) {
    plans.push_back(by_rank.at(ranks[run_by(stage)]));
    plans.back().rank = ranks[stage];
  }
  return plans;
}

std::vector<StepMemoryPlan> plan_stages(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job) {
  return planner::plan_stages(training, options, job, /*stand_ins=*/{});
}

StepMemoryPlan plan(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job) {
  std::vector<StepMemoryPlan> stages = plan_stages(training, options, job);
  return std::move(*std::find_if(
      stages.begin(), stages.end(), [&](const StepMemoryPlan& stage) {
        return stage.rank == job.rank;
      }));
}

namespace {

/// Puts dry memory in the place of a module's tensors, and gives them back.
class LentModule {
 public:
  explicit LentModule(torch::nn::Module& module) {
    const c10::NoGradGuard no_grad;
    for (const at::Tensor& parameter : module.parameters()) {
      TESSERA_CHECK(
          !sharding::has_page_key(parameter),
          "plan: the module is wrapped already; plan before wrap().");
      lend(parameter, /*copies=*/false);
    }
    for (const at::Tensor& buffer : module.buffers()) {
      lend(buffer, /*copies=*/true);
    }
    dry_.clear(); // from here on the engine alone holds them
  }

  ~LentModule() {
    const c10::NoGradGuard no_grad;
    for (const Lent& each : lent_) {
      if (sharding::has_page_key(each.tensor)) {
        sharding::remove_page_key(each.tensor);
      }
      sharding::replace_storage(each.tensor, each.storage, each.dtype);
      each.tensor.mutable_grad() = each.gradient;
    }
  }
  LentModule(const LentModule&) = delete;
  LentModule& operator=(const LentModule&) = delete;

 private:
  struct Lent {
    at::Tensor tensor;
    c10::Storage storage;
    at::ScalarType dtype;
    at::Tensor gradient;
  };

  void lend(const at::Tensor& tensor, bool copies) {
    // A tied parameter comes several times.
    if (!tensor.defined() || !tensor.has_storage() ||
        !seen_.insert(tensor.unsafeGetTensorImpl()).second) {
      return;
    }
    const c10::Storage storage = tensor.storage();
    lent_.push_back({tensor, storage, tensor.scalar_type(), tensor.grad()});
    tensor.mutable_grad().reset();
    at::Tensor& bytes = dry_[storage.unsafeGetStorageImpl()];
    if (!bytes.defined()) {
      const auto count = static_cast<int64_t>(storage.nbytes());
      if (copies) {
        const runtime::DryValues values;
        bytes = at::empty({count}, at::kByte);
        std::copy_n(
            static_cast<const std::byte*>(storage.data()),
            storage.nbytes(),
            static_cast<std::byte*>(bytes.mutable_data_ptr()));
      } else {
        bytes = at::empty({count}, at::kByte);
        runtime::set_dry_values(bytes.const_data_ptr(), false);
      }
    }
    sharding::replace_storage(tensor, bytes.storage(), tensor.scalar_type());
  }

  std::vector<Lent> lent_;
  std::set<const c10::TensorImpl*> seen_;
  std::map<const c10::StorageImpl*, at::Tensor> dry_;
};

} // namespace

StepMemoryPlan plan(
    torch::nn::Module& module,
    const EngineOptions& options,
    const std::function<at::Tensor()>& loss,
    const PlannedJob& job) {
  const ParallelSizes& sizes = job.parallel.sizes;
  TESSERA_CHECK(
      sizes.tensor == 1 && sizes.pipeline == 1 && sizes.expert == 1,
      "plan: ranks that divide layers need a module each; use PlannedTraining.");
  std::unique_ptr<LentModule> lent;
  // Given back when the engine no longer uses the module, on whichever thread.
  const StepMemoryPlan result = plan(
      {.make =
           [&](World& /*world*/, ParallelRun& /*parallel*/) {
             lent = std::make_unique<LentModule>(module);
             return std::shared_ptr<torch::nn::Module>(
                 &module, [](torch::nn::Module*) {});
           },
       .loss = [&](torch::nn::Module& /*module*/) { return loss(); },
       .stage = {}},
      options,
      job);
  return result;
}

} // namespace tessera
