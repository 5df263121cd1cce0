// SPDX-License-Identifier: Apache-2.0
#pragma once
// `plan()` says what memory a training step takes, activations included, and
// what it computes and sends, by running it with shapes only.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/dry_run/work_counts.h"
#include "tessera/runtime/memory/memory_ledger.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Memory at one moment of a step.
struct MemoryMoment {
  std::string module; ///< whose parameter was used last
  std::string operation; ///< that runs, e.g. "aten::addmm"
  /// What the engine holds on the device, by purpose.
  MemoryBytes engine{};
  /// All the rest: activations, gradients of activations, temporary memory,
  /// buffers and batches (PlannedTraining::batches).
  int64_t activations = 0;
  /// Of StepMemoryPlan::calls, how many came before.
  size_t calls = 0;

  int64_t total() const {
    return total_bytes(engine) + activations;
  }
};

/// Bytes of copies between host and device.
struct CopiedBytes {
  int64_t to_host = 0;
  int64_t to_device = 0;
};

struct StepMemoryPlan {
  int rank = 0;
  /// Bytes by tier and purpose, of both engines, as wrap() plans them; but of
  /// activations in host memory, where that is a limit, what the steps took.
  TierBytes planned{};
  /// Activations when the first micro-batch's forward has ended; 0 with
  /// pipeline stages, whose forwards and backwards alternate.
  int64_t activations_after_forward = 0;
  /// The largest MemoryMoment::total() of all steps.
  int64_t peak_bytes = 0;
  /// The moment of the peak.
  MemoryMoment peak;
  /// The last step, in order: every moment at which memory had changed by more
  /// than a thousandth of the peak since the moment before.
  std::vector<MemoryMoment> timeline;
  /// What the last step computed and sent.
  std::vector<OperatorWork> operators;
  /// The same of the engine's kernels, which are no operators: updates, packed
  /// gradients, norms. Without module.
  std::vector<OperatorWork> kernels;
  /// Calls of `operators` and `kernels`, in their order.
  std::vector<WorkCall> calls;
  std::vector<CollectiveWork> collectives;
  /// Copies of activations in the last step, which are in `operators` too.
  CopiedBytes activation_copies;
  /// Where the program read values that a dry run does not have, and what was
  /// assumed; which steps of a run the plan stands for, if they differ.
  std::vector<std::string> assumptions;

  /// Floating-point operations of one step on this rank, in forward and
  /// backward, with what is recomputed.
  double flops() const;
};

/// The job for which a step is planned.
struct PlannedJob {
  int rank = 0;
  int world_size = 1;
  /// Of the real run: kCPU or kCUDA. On CUDA, attention and dropout keep what
  /// LibTorch's CUDA kernels keep; workspaces of libraries, and what LibTorch's
  /// allocator rounds up, are not included.
  c10::DeviceType device = c10::kCPU;
  /// How ranks divide the model.
  ParallelOptions parallel;
  /// Micro-batches of an optimizer step.
  int accumulate = 1;
  /// Gradients are clipped before each update.
  bool clips_gradients = false;
  /// As TrainerOptions::random_seed.
  std::optional<uint64_t> random_seed;
  /// Run one after another: the first records the order of pages, the others
  /// follow it.
  int steps = 2;
};

/// What one rank has beside the trained module, such as a teacher.
struct PlannedBeside {
  /// The forward of a micro-batch, in place of PlannedTraining::loss. It owns
  /// all that it needs.
  std::function<at::Tensor(torch::nn::Module& module)> loss;
  /// A model that `loss` runs, and its engine, both owned by `loss`; null:
  /// there is none.
  const torch::nn::Module* model = nullptr;
  const Engine* engine = nullptr;
  /// What they leave of EngineOptions::memory to the trained module.
  MemoryBudget memory;
};

/// What is trained. Its functions are called in dry runs, where operators do
/// not compute, parameters have no values, and reading a value gives zero; see
/// runtime/dry_run/dry_run.h. Tensors that were made before, such as a batch,
/// keep theirs.
struct PlannedTraining {
  /// Makes the module, or the rank's part of it. It takes no memory.
  std::function<
      std::shared_ptr<torch::nn::Module>(World& world, ParallelRun& parallel)>
      make;
  /// Without pipeline stages: the forward of a micro-batch. Its loss is scaled
  /// by 1 / accumulate. `module` is what `make` returned.
  std::function<at::Tensor(torch::nn::Module& module)> loss;
  /// With pipeline stages: PipelineCallbacks::forward of a module.
  std::function<PipelineForward(torch::nn::Module& module)> stage;
  /// Makes tensors of the size of the batches that a rank has on its device, or
  /// with a CPU as its device anywhere, while a step runs: those of the step
  /// and those that are loaded ahead. They live until the plan ends. Empty:
  /// none but what `loss` makes.
  std::function<std::vector<at::Tensor>(World& world, const PlannedJob& job)>
      batches;
  /// Makes what the rank has beside `module`, which is about to be wrapped.
  /// Empty: nothing. Not with pipeline stages.
  std::function<PlannedBeside(
      World& world,
      ParallelRun& parallel,
      const std::shared_ptr<torch::nn::Module>& module)>
      beside;
};

/// Runs the training's own code, wrap() and some steps, in a job whose other
/// ranks are simulated, without computing and without memory. Takes seconds for
/// a model of hundreds of layers. Pipeline stages run on a thread each. Not
/// collective; the process need not have joined a job.
/// @param options as given to wrap(), without EngineOptions::parallel.
/// @return the plans of all ranks of job.rank's pipeline, by pipeline stage.
/// @throws tessera::Error naming an operator whose shapes are not known, and
///   all that wrap() and the training throw.
std::vector<StepMemoryPlan> plan_stages(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job = {});

/// As above, of job.rank only.
StepMemoryPlan plan(
    const PlannedTraining& training,
    const EngineOptions& options,
    const PlannedJob& job = {});

/// As above, of a module that exists and is not wrapped: its parameters lend
/// their shapes and get their values and gradients back; buffers are copied.
/// @param loss the forward of a micro-batch through `module`.
/// @param job without ranks that divide layers.
StepMemoryPlan plan(
    torch::nn::Module& module,
    const EngineOptions& options,
    const std::function<at::Tensor()>& loss,
    const PlannedJob& job = {});

} // namespace tessera
