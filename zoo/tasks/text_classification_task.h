// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training and scoring a classifier on labelled texts.

#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/text_classification_data.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::zoo {

/// Cross-entropy over shuffled batches. Rows are padded to the longest of their
/// batch.
class TextClassificationTask : public ModelTask {
 public:
  /// @param model a classifier, or a pipeline stage's part of one.
  /// @param tokenizer, examples outlive the task.
  TextClassificationTask(
      const std::shared_ptr<zoo::Model>& model,
      const BertTokenizer& tokenizer,
      const std::vector<LabelledEncoding>& examples,
      const Options& options);
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
    EngineRef engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

} // namespace tessera::zoo
