// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training and scoring a BERT classifier on labelled texts.

#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/training_task.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/bert.h"
#include "tessera/zoo/text_classification_data.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// A batch of tokenized texts on a device.
struct ClassificationBatch {
  BertInput input;
  at::Tensor labels; ///< [B] int64
};

/// Cross-entropy over shuffled batches. Every rank takes its own rows of every
/// global batch; rows that do not fill a last global batch wait for the next
/// epoch's order. Rows are padded to the longest of their batch.
class TextClassificationTask : public TrainingTask {
 public:
  /// All references outlive the task.
  /// @param batch_size rows of one rank's micro-batch.
  /// @param seed of the order of the examples, the same on all ranks.
  /// @throws Error when there are too few examples for one global batch.
  TextClassificationTask(
      const World& world,
      BertForSequenceClassification model,
      const BertTokenizer& tokenizer,
      const std::vector<LabelledEncoding>& examples,
      int64_t batch_size,
      uint64_t seed);

  int64_t batches_per_epoch() const override;
  int64_t batch_size() const override {
    return batch_size_;
  }
  void begin_epoch(int64_t epoch) override;
  void load(int64_t index) override;
  MicroBatch forward(int64_t index) override;

 private:
  const World& world_;
  BertForSequenceClassification model_;
  const BertTokenizer& tokenizer_;
  const std::vector<LabelledEncoding>& examples_;
  int64_t batch_size_;
  uint64_t seed_;
  std::vector<size_t> order_;
  ClassificationBatch batch_;
};

struct ClassificationScore {
  double accuracy = 0;
  double loss = 0; ///< mean cross-entropy
  int64_t examples = 0;
};

/// Scores the wrapped model on all examples, shared among the ranks, in
/// evaluation mode; the mode it was in is restored. Collective.
ClassificationScore evaluate_text_classification(
    const World& world,
    Engine& engine,
    BertForSequenceClassification& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

} // namespace tessera
