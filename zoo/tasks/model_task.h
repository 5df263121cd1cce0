// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelTask` trains a model of the zoo on numbered examples; run_on_examples()
// runs it on all of them.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tessera::zoo {

/// The epoch number for examples that are scored: their random masks are the
/// same each time.
inline constexpr int64_t kScoredEpoch = -1;

/// Makes a batch of the examples with these numbers, on the model's device.
/// Random choices depend only on the numbers of the example and the epoch, so
/// they are the same under any layout of ranks.
using MakeBatch = std::function<
    zoo::ModelInput(const std::vector<size_t>& examples, int64_t epoch)>;

/// The model's own loss over shuffled batches. Ranks with different batches
/// take their own rows of every global batch; rows that do not fill a last
/// global batch are skipped in this epoch.
class ModelTask : public PipelineTask {
 public:
  struct Options {
    BatchShare share;
    int64_t batch_size = 1; ///< rows per rank and micro-batch
    uint64_t seed = 0; ///< of the order of examples, the same on all ranks
    /// The ranks that see the same batches, which periodically verify that they
    /// do; outlives the task. Null if each rank sees its own.
    Communicator* same_batch = nullptr;
  };

  /// @param model with a loss, or a pipeline stage of one.
  /// @param examples their number.
  /// @throws tessera::Error if they do not fill one global batch.
  ModelTask(
      std::shared_ptr<zoo::Model> model,
      size_t examples,
      MakeBatch make_batch,
      const Options& options);

  /// The number of examples.
  size_t examples() const {
    return examples_;
  }

  int64_t batches_per_epoch() const override;
  int64_t batch_size() const override {
    return options_.batch_size;
  }
  void begin_epoch(int64_t epoch) override;
  void load(int64_t index) override;
  MicroBatch forward(int64_t index) override;

  int64_t load_micro_batch(int64_t index, int number) override;
  std::vector<at::Tensor> forward_chunk(
      int chunk,
      int number,
      const std::vector<at::Tensor>& received) override;

 private:
  std::shared_ptr<zoo::Model> model_;
  size_t examples_;
  MakeBatch make_batch_;
  Options options_;
  std::vector<size_t> order_;
  int64_t epoch_ = 0; ///< the epoch of `order_`
  std::vector<zoo::ModelInput> batches_; ///< of a step, by micro-batch number
  PipelineForward forward_chunk_;
};

/// Runs the wrapped model in evaluation mode on all examples, divided among the
/// ranks; the previous mode is restored. Collective.
/// @param use called with each batch and its results, on the ranks that have
///     results of their own.
void run_on_examples(
    ParallelRun& parallel,
    zoo::Model& model,
    size_t examples,
    int64_t batch_size,
    const MakeBatch& make_batch,
    const std::function<void(const zoo::ModelInput&, const zoo::ModelOutput&)>&
        use);

} // namespace tessera::zoo
