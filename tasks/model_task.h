// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelTask` trains the model of a task on its training data; evaluate()
// scores it on the held-out data.

#include "tessera/engine/data/data_loader.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/tasks/sequence_curriculum.h"
#include "tessera/tasks/task.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace tessera::tasks {

/// Whether the micro-batches of a step are weighed by their labels
/// (LossMean::kLabels), for which all of them are loaded before the first
/// forward.
/// @param has_equal_labels of the data; see DataSet::has_equal_labels().
/// @param is_mean_over_labels of the loss; true of the model's own.
/// @param micro_batches of a step, on all ranks.
bool weighs_micro_batches(
    LossMean loss_mean,
    bool has_equal_labels,
    bool is_mean_over_labels,
    int64_t micro_batches);

/// Batches that a ModelTask has while a forward runs.
struct KeptBatches {
  int64_t on_device = 1; ///< of the step
  int64_t ahead = 0; ///< in host memory, loaded ahead
};

/// @param accumulate micro-batches of a rank's step.
/// @param loads_steps weighs_micro_batches(), or BatchLoss::begins_steps().
KeptBatches kept_batches(
    const DataLoaderOptions& loading,
    int64_t accumulate,
    bool loads_steps,
    bool has_pipeline);

/// The model's own loss over shuffled batches. Ranks with different batches
/// take their own rows of every global batch; see SampleOrder.
class ModelTask : public PipelineTask {
 public:
  /// @param task with training data; this and the others outlive this object.
  /// @param engine which has wrapped the model, or a pipeline stage of it.
  /// @param batch_size rows per rank and micro-batch.
  /// @param seed of the order of examples, the same on all ranks.
  /// @throws tessera::Error if the examples do not fill one global batch.
  /// @param loading of batches.
  /// @param accumulate micro-batches of an optimizer step.
  /// @param curriculum nullopt: sequences are whole from the first step on.
  /// @param max_length of whole sequences; for a curriculum.
  /// @param loss_mean for LossMean::kLabels, the micro-batches of a step are
  ///   loaded before its first forward, and their labels counted on all ranks.
  ModelTask(
      const Task& task,
      Engine& engine,
      ParallelRun& parallel,
      int64_t batch_size,
      uint64_t seed,
      const DataLoaderOptions& loading = {},
      int64_t accumulate = 1,
      const std::optional<CurriculumOptions>& curriculum = {},
      int64_t max_length = 0,
      LossMean loss_mean = LossMean::kLabels);

  int64_t batches_per_epoch() const override {
    return order_.batches_per_epoch();
  }
  int64_t batch_size() const override {
    return order_.batch_size();
  }
  int64_t samples_per_epoch() const override {
    return static_cast<int64_t>(order_.samples());
  }
  int64_t batches_per_step() const override {
    return order_.batches().per_step();
  }
  void begin_at(const SamplePosition& position) override {
    loader_.seek(position);
  }
  void begin_epoch(int64_t epoch) override;
  void begin_step(int64_t step) override {
    step_ = step;
    number_ = -1;
  }
  void load(int64_t index) override;
  int64_t loaded_tokens() const override;
  int64_t loaded_padding() const override;
  MicroBatch forward(int64_t index) override;
  void after_step(int64_t step, int64_t steps) override;
  std::optional<TaskScore> score(const std::function<bool()>& stops) override;

  int64_t load_micro_batch(int64_t index, int number) override;
  std::vector<at::Tensor> forward_chunk(
      int chunk,
      int number,
      const std::vector<at::Tensor>& received) override;

 private:
  void load_ahead(int64_t index, int number);
  /// Collective over the job.
  void weigh_micro_batches();
  const zoo::ModelInput& current() const {
    return batches_[loads_steps_ ? static_cast<size_t>(number_) : 0];
  }
  at::Tensor weighted(const zoo::ModelOutput& output, int number) const;

  const Task& task_;
  Engine& engine_;
  ParallelRun& parallel_;
  /// The ranks that see the same batches, which periodically verify that they
  /// do. Null if each rank sees its own.
  Communicator* same_batch_;
  SampleOrder order_;
  std::optional<CurriculumOptions> curriculum_;
  int64_t max_length_;
  int64_t epoch_ = 0;
  int64_t step_ = 0;
  int number_ = -1; ///< of the micro-batch of the step that load() was last of
  std::vector<zoo::ModelInput> batches_; ///< of a step, by micro-batch number
  std::vector<int64_t> padding_; ///< of them, their tokens that are padding
  int loaded_ = 0; ///< the micro-batch whose padding is asked for
  bool weighs_; ///< micro-batches of a step have weights
  bool loads_steps_; ///< all batches of a step before its first forward
  /// With `weighs_`, by micro-batch number: its labels, and their ratios to the
  /// means over all micro-batches of all ranks.
  std::vector<zoo::LossCounts> labels_;
  std::vector<zoo::LossCounts> weights_;
  PipelineForward forward_chunk_;
  DataLoader<zoo::ModelInput> loader_;
};

/// Scores the wrapped model in evaluation mode on all held-out examples,
/// divided among the ranks; the previous mode is restored. Collective.
/// @param stops as for TrainingTask::score(); may be empty.
/// @return the same on all ranks; nothing if `stops` has returned true.
std::optional<zoo::Score> evaluate(
    const Task& task,
    Engine& engine,
    ParallelRun& parallel,
    int64_t batch_size,
    const std::function<bool()>& stops = {});

} // namespace tessera::tasks
