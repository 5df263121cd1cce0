// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/rank_steps.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/random/random_key.h"

#include <ATen/ops/stack.h>

#include <optional>
#include <utility>
#include <vector>

namespace tessera::planner {

namespace {

EngineOptions options_of(
    EngineOptions options,
    const ParallelRun& parallel,
    const PlannedBeside& beside) {
  options.parallel = parallel.mesh_or_null();
  // There are no numbers, or only those of one rank.
  options.on_nonfinite = OnNonfinite::kApply;
  if (beside.engine != nullptr) {
    options.memory = beside.memory;
  }
  return options;
}

std::shared_ptr<torch::nn::Module> made(
    const PlannedTraining& training,
    World& world,
    ParallelRun& parallel) {
  auto module = training.make(world, parallel);
  TESSERA_CHECK(
      module != nullptr, "plan: PlannedTraining::make made no module");
  return module;
}

/// Calls `forward` with the random numbers of a micro-batch.
template <typename Forward>
auto with_random_key(
    const PlannedJob& job,
    const BatchShare& share,
    c10::Device device,
    int step,
    int micro,
    const Forward& forward) {
  std::optional<RandomKeyScope> scope;
  if (job.random_seed) {
    scope.emplace(
        RandomKey{*job.random_seed, step, micro * share.count + share.index},
        device);
  }
  return forward();
}

} // namespace

RankSteps::RankSteps(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const std::shared_ptr<runtime::SimulatedJob>& simulation,
    const InitOptions& init)
    : training_(training),
      job_(job),
      world_(job.rank, job.world_size, init, simulation),
      parallel_(world_, job.parallel, job.accumulate),
      batches_(
          training.batches ? training.batches(world_, job_)
                           : std::vector<at::Tensor>()),
      module_(made(training, world_, parallel_)),
      beside_(
          training.beside ? training.beside(world_, parallel_, module_)
                          : PlannedBeside{.loss = training.loss}),
      engine_(world_, module_, options_of(options, parallel_, beside_)) {}

MemoryBytes RankSteps::planned_memory(MemoryTier tier) const {
  return sum_over_engines(
      [tier](const Engine& engine) { return engine.planned_memory(tier); });
}

MemoryBytes RankSteps::measured_memory(MemoryTier tier) const {
  return sum_over_engines(
      [tier](const Engine& engine) { return engine.measured_memory(tier); });
}

MemoryBytes RankSteps::allocated_memory(MemoryTier tier) const {
  return sum_over_engines(
      [tier](const Engine& engine) { return engine.allocated_memory(tier); });
}

CopiedBytes RankSteps::copied_activations() const {
  const auto of = [](const Engine& engine) {
    const ActivationStatistics statistics = engine.stats().activations;
    return CopiedBytes{statistics.bytes_to_host, statistics.bytes_to_device};
  };
  CopiedBytes sum = of(engine_);
  if (beside_.engine != nullptr) {
    const CopiedBytes others = of(*beside_.engine);
    sum.to_host += others.to_host;
    sum.to_device += others.to_device;
  }
  return sum;
}

MemoryBytes RankSteps::sum_over_engines(
    const std::function<MemoryBytes(const Engine&)>& bytes_of) const {
  MemoryBytes sum = bytes_of(engine_);
  if (beside_.engine != nullptr) {
    const MemoryBytes others = bytes_of(*beside_.engine);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += others[i];
    }
  }
  return sum;
}

at::Tensor RankSteps::run(
    int step,
    const std::function<void(int number)>& after_forward) {
  at::Tensor loss = parallel_.pipeline() != nullptr
                        ? run_stage(step)
                        : run_micro_batches(step, after_forward);
  if (job_.clips_gradients) {
    engine_.clip_grad_norm(1);
  }
  engine_.step();
  return loss;
}

at::Tensor RankSteps::run_micro_batches(
    int step,
    const std::function<void(int number)>& after_forward) {
  TESSERA_CHECK(beside_.loss, "plan: PlannedTraining::loss is empty");
  at::Tensor sum;
  for (int micro = 0; micro < job_.accumulate; ++micro) {
    at::Tensor loss = with_random_key(
        job_, parallel_.batches(), engine_.device(), step, micro, [&] {
          return beside_.loss(*module_);
        });
    if (after_forward) {
      after_forward(micro);
    }
    if (job_.accumulate > 1) {
      loss = loss / static_cast<double>(job_.accumulate);
    }
    engine_.backward(loss);
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

at::Tensor RankSteps::run_stage(int step) {
  TESSERA_CHECK(
      training_.stage,
      "plan: there are pipeline stages, but PlannedTraining::stage is empty");
  const PipelineForward forward = training_.stage(*module_);
  PipelineCallbacks callbacks;
  callbacks.forward =
      [&](int chunk, int number, const std::vector<at::Tensor>& received) {
        return with_random_key(
            job_, parallel_.batches(), engine_.device(), step, number, [&] {
              return forward(chunk, number, received);
            });
      };
  const std::vector<at::Tensor> losses =
      engine_.run_pipeline(*parallel_.pipeline(), callbacks);
  return losses.empty() ? at::Tensor() : at::stack(losses).mean();
}

} // namespace tessera::planner
