// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextClassificationTask` trains a classifier on labeled texts;
// evaluate_text_classification() scores it.

#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/text_classification_data.h"
#include "tessera/zoo/tokenizer/bert_tokenizer.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::zoo {

/// Cross-entropy over shuffled batches. Each batch is padded to its longest
/// row.
class TextClassificationTask : public ModelTask {
 public:
  /// @param model a classifier, or a pipeline stage of one.
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

/// Scores the wrapped model in evaluation mode on all examples, divided among
/// the ranks; the previous mode is restored. Collective.
/// @return the same on all ranks.
ClassificationScore evaluate_text_classification(
    ParallelRun& parallel,
    EngineRef engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

} // namespace tessera::zoo
