// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/simulated_rank.h"

#include "tessera/planner/rank_steps.h"
#include "tessera/runtime/comm/simulated_job.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/memory/out_of_memory.h"
#include "tessera/runtime/memory/spent_gradients.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <utility>

namespace tessera {

namespace {

// A stage waits for another one's step, which computes.
constexpr std::chrono::hours kLongestStep{24};

/// LibTorch's allocator refuses more than `bytes` while it lives.
class MemoryCap {
 public:
  MemoryCap(c10::Device device, std::optional<int64_t> bytes)
      : device_(device), is_set_(bytes.has_value()) {
    if (is_set_) {
      runtime::limit_bytes(device_, bytes);
    }
  }
  ~MemoryCap() {
    if (is_set_) {
      runtime::limit_bytes(device_, std::nullopt);
    }
  }
  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;

 private:
  c10::Device device_;
  bool is_set_;
};

/// The dry runs of a pipeline's other stages.
class OtherStages {
 public:
  OtherStages(
      const PlannedTraining& training,
      const EngineOptions& options,
      const PlannedJob& job,
      const std::shared_ptr<runtime::SimulatedJob>& simulation)
      : simulation_(simulation) {
    for (const int rank : simulation->present()) {
      if (rank == job.rank) {
        continue;
      }
      PlannedJob rank_job = job;
      rank_job.rank = rank;
      stages_.push_back(std::async(
          std::launch::async, [&training, &options, rank_job, simulation] {
            try {
              planner::plan_rank(training, options, rank_job, simulation);
            } catch (const std::exception& error) {
              simulation->end(error.what());
              throw;
            }
          }));
    }
  }
  ~OtherStages() {
    simulation_->end("the rank that computes has ended");
  }
  OtherStages(const OtherStages&) = delete;
  OtherStages& operator=(const OtherStages&) = delete;

  /// @throws what one of them has thrown.
  void finish() {
    for (auto& stage : stages_) {
      stage.get();
    }
  }

 private:
  std::shared_ptr<runtime::SimulatedJob> simulation_;
  std::vector<std::future<void>> stages_;
};

/// The rank that computes.
class SimulatedRank {
 public:
  SimulatedRank(
      const PlannedTraining& training,
      const EngineOptions& options,
      const PlannedJob& job,
      const SimulationOptions& settings,
      c10::Device device,
      SimulatedRun& run)
      : training_(training),
        options_(options),
        job_(job),
        settings_(settings),
        device_(device),
        run_(run),
        simulation_(std::make_shared<runtime::SimulatedJob>(
            ParallelMesh(job.parallel.sizes, job.world_size, job.world_size)
                .ranks(ParallelGroup::kPipeline, job.rank),
            std::nullopt,
            kLongestStep)) {}

  void make_steps() {
    runtime::reset_peak_bytes(device_);
    const int64_t before = runtime::peak_bytes(device_);
    const MemoryCap cap(device_, settings_.memory_cap);
    OtherStages others(training_, options_, job_, simulation_);
    explaining("wrap()", [&] {
      steps_ = std::make_unique<planner::RankSteps>(
          training_, options_, job_, simulation_, settings_.init);
    });
    sample();
    for (int step = 0; step < job_.steps; ++step) {
      explaining(formatted("step {}", step + 1), [&] { make_step(step); });
      run_.peak_bytes = runtime::peak_bytes(device_) - before;
      if (settings_.report) {
        settings_.report(run_);
      }
    }
    others.finish();
    steps_.reset();
  }

 private:
  void make_step(int step) {
    using Clock = std::chrono::steady_clock;
    MeasuredStep measured;
    const double collectives = simulation_->seconds(job_.rank);
    const Clock::time_point begin = Clock::now();
    const at::Tensor loss = steps_->run(step, [&](int) { sample(); });
    if (loss.defined()) {
      measured.loss = loss.item<double>(); // waits for the device
      TESSERA_CHECK(
          std::isfinite(*measured.loss),
          "simulated rank {}: the loss of step {} is {}",
          job_.rank,
          step + 1,
          *measured.loss);
    }
    const std::chrono::duration<double> passed = Clock::now() - begin;
    measured.seconds = passed.count();
    measured.collective_seconds = simulation_->seconds(job_.rank) - collectives;
    run_.steps.push_back(measured);
    sample();
  }

  /// Takes what the engine holds now into account.
  void sample() {
    for (size_t tier = 0; tier < kMemoryTierCount; ++tier) {
      const MemoryBytes now =
          steps_->measured_memory(static_cast<MemoryTier>(tier));
      for (size_t i = 0; i < kMemoryPurposeCount; ++i) {
        run_.measured[tier][i] = std::max(run_.measured[tier][i], now[i]);
      }
    }
  }

  void explaining(const std::string& label, const std::function<void()>& work) {
    try {
      work();
    } catch (const c10::Error& error) {
      if (!runtime::is_out_of_memory(error)) {
        throw;
      }
      const std::string cap =
          settings_.memory_cap
              ? " under a cap of " + runtime::size_text(*settings_.memory_cap)
              : "";
      const std::string text = formatted(
          "simulated rank {} of {} runs out of memory in {}{}: {}\n{}",
          job_.rank,
          job_.world_size,
          label,
          cap,
          error.what_without_backtrace(),
          runtime::kMemoryRemedy);
      throw Error(
          steps_ ? memory_table(
                       text + "\nheld by the engine; the rest are activations",
                       steps_->allocated_memory(MemoryTier::kDevice))
                 : memory_table(
                       text + "\nplanned for the engine",
                       run_.plan.planned.front()));
    }
  }

  const PlannedTraining& training_;
  const EngineOptions& options_;
  const PlannedJob& job_;
  const SimulationOptions& settings_;
  c10::Device device_;
  SimulatedRun& run_;
  std::shared_ptr<runtime::SimulatedJob> simulation_;
  std::unique_ptr<planner::RankSteps> steps_;
};

void check_can_simulate(const ParallelSizes& sizes, c10::Device device) {
  TESSERA_CHECK(
      sizes.context == 1 && sizes.expert == 1,
      "a rank of parallel.context {} and parallel.expert {} cannot be simulated with numbers: what its partners would send depends on their tokens. Use a dry run (`tessera plan` without --simulate-world), or set both to 1.",
      sizes.context,
      sizes.expert);
  TESSERA_CHECK(
      sizes.pipeline == 1 || device.is_cpu(),
      "a rank of parallel.pipeline {} cannot be simulated with numbers on {}, because its neighbors are dry runs on the CPU. Set device=cpu, or use a dry run (`tessera plan` without --simulate-world).",
      sizes.pipeline,
      device.str());
}

} // namespace

SimulatedRun simulate_rank(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job,
    const SimulationOptions& settings) {
  runtime::install_cpu_memory_counter();
  const c10::Device device =
      World(
          job.rank,
          job.world_size,
          settings.init,
          std::make_shared<runtime::SimulatedJob>(std::vector<int>{job.rank}))
          .device();
  check_can_simulate(job.parallel.sizes, device);
  // As init() would: dry runs take it for granted.
  for (const c10::DeviceType type : {c10::kCPU, device.type()}) {
    runtime::reuse_spent_gradients(settings.init.reuse_gradients, type);
  }
  PlannedJob rank_job = job;
  rank_job.device = device.type();
  SimulatedRun run;
  run.plan = plan(training, options, rank_job);
  if (settings.report) {
    settings.report(run);
  }
  if (!device.is_cpu()) {
    c10::impl::getDeviceGuardImpl(device.type())->setDevice(device);
  }
  SimulatedRank(training, options, rank_job, settings, device, run)
      .make_steps();
  return run;
}

} // namespace tessera
