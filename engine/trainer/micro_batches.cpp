// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/micro_batches.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/profile/span_recorder.h"
#include "tessera/runtime/random/random_key.h"

#include <vector>

namespace tessera::engine {

MicroBatches::MicroBatches(
    Engine& engine,
    TrainingTask& task,
    const World& world,
    const TrainerOptions& options,
    RunMonitor& monitor)
    : engine_(engine),
      task_(task),
      stages_(dynamic_cast<PipelineTask*>(&task)),
      pipeline_(
          options.parallel != nullptr ? options.parallel->pipeline() : nullptr),
      monitor_(monitor),
      random_seed_(options.random_seed),
      share_(batch_share(world, options)),
      device_(engine.device()),
      count_(options.accumulate),
      per_epoch_(task.batches_per_epoch()) {
  TESSERA_CHECK(
      pipeline_ == nullptr || stages_ != nullptr,
      "training: parallel.pipeline is above 1, but this task's model has no pipeline stages (it is not a PipelineTask). Set it to 1.");
}

template <typename Forward>
auto MicroBatches::with_random_key(
    int64_t step,
    int64_t micro,
    const Forward& forward) {
  std::optional<RandomKeyScope> scope;
  if (random_seed_) {
    const int64_t number = micro * share_.count + share_.index;
    scope.emplace(RandomKey{*random_seed_, step, number}, device_);
  }
  return forward();
}

void MicroBatches::run(int64_t step, int64_t& batch) {
  task_.begin_step(step);
  if (pipeline_ != nullptr) {
    run_stages(step, batch);
    return;
  }
  for (int64_t micro = 0; micro < count_; ++micro, ++batch) {
    {
      const runtime::TraceSpan span(runtime::TraceLane::kData, "batch");
      begin(batch);
      task_.load(batch % per_epoch_);
    }
    monitor_.begin_work(task_.loaded_tokens());
    monitor_.begin(StepPhase::kForward);
    const MicroBatch done = with_random_key(
        step, micro, [&] { return task_.forward(batch % per_epoch_); });
    monitor_.add(done, task_.loaded_padding());
    monitor_.begin(StepPhase::kBackward);
    engine_.backward(
        count_ == 1 ? done.loss : done.loss / static_cast<double>(count_));
    monitor_.end_work(done.tokens);
  }
}

void MicroBatches::begin(int64_t batch) {
  monitor_.begin(StepPhase::kData);
  if (batch % per_epoch_ == 0) {
    task_.begin_epoch(batch / per_epoch_);
  }
}

void MicroBatches::run_stages(int64_t step, int64_t& batch) {
  int64_t tokens = 0;
  int64_t padding = 0;
  for (int64_t micro = 0; micro < count_; ++micro, ++batch) {
    const runtime::TraceSpan span(runtime::TraceLane::kData, "batch");
    begin(batch);
    tokens +=
        stages_->load_micro_batch(batch % per_epoch_, static_cast<int>(micro));
    padding += task_.loaded_padding();
  }
  // Forwards and backwards alternate: all of it counts as backward.
  monitor_.begin_work(tokens);
  monitor_.begin(StepPhase::kBackward);
  PipelineCallbacks callbacks;
  callbacks.forward =
      [&](int chunk, int number, const std::vector<at::Tensor>& received) {
        return with_random_key(step, number, [&] {
          return stages_->forward_chunk(chunk, number, received);
        });
      };
  const auto losses = engine_.run_pipeline(*pipeline_, callbacks);
  monitor_.end_work(tokens);
  monitor_.add(losses, tokens, padding);
}

} // namespace tessera::engine
