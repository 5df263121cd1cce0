// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training and scoring a classifier on labelled texts.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/tasks/text_classification_data.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

/// Cross-entropy over shuffled batches. Ranks that see different batches take
/// their own rows of every global batch; rows that do not fill a last global
/// batch wait for the next epoch's order. Rows are padded to the longest of
/// their batch.
class TextClassificationTask : public PipelineTask {
 public:
  /// All references outlive the task.
  /// @param model a classifier, or a pipeline stage's part of one.
  /// @param batch_size rows of one rank's micro-batch.
  /// @param seed of the order of the examples, the same on all ranks.
  /// @param same_batch of the ranks that see the same batches, which now and
  ///     then find out whether they do. Null where each sees its own.
  /// @throws Error when there are too few examples for one global batch.
  TextClassificationTask(
      BatchShare share,
      std::shared_ptr<zoo::Model> model,
      const BertTokenizer& tokenizer,
      const std::vector<LabelledEncoding>& examples,
      int64_t batch_size,
      uint64_t seed,
      Communicator* same_batch = nullptr);

  int64_t batches_per_epoch() const override;
  int64_t batch_size() const override {
    return batch_size_;
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
  BatchShare share_;
  std::shared_ptr<zoo::Model> model_;
  const BertTokenizer& tokenizer_;
  const std::vector<LabelledEncoding>& examples_;
  int64_t batch_size_;
  uint64_t seed_;
  Communicator* same_batch_;
  std::vector<size_t> order_;
  std::vector<zoo::ModelInput> batches_; ///< of a step, by number
  PipelineForward forward_chunk_;
};

struct ClassificationScore {
  double accuracy = 0;
  double loss = 0; ///< mean cross-entropy
  int64_t examples = 0;
};

/// Scores the wrapped model on all examples, shared among the ranks, in
/// evaluation mode; the mode it was in is restored. Collective.
/// @return the same on all ranks.
ClassificationScore evaluate_text_classification(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

} // namespace tessera
