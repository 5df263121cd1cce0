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

/// A batch of texts, padded to the longest one, on `device`.
/// @param multiple_of the length is rounded up to a multiple of this.
ModelInput padded_input(
    const BertTokenizer& tokenizer,
    const std::vector<Encoding>& texts,
    int64_t multiple_of,
    c10::Device device);

/// Cross-entropy over shuffled batches, or the mean squared error if the model
/// predicts numbers. Each batch is padded to its longest
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
    Engine& engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

struct RegressionScore {
  double squared_error = 0; ///< mean
  double pearson = 0; ///< correlation; NaN if either side is constant
  int64_t examples = 0;
};

/// As evaluate_text_classification(), for a model that predicts numbers.
/// Collective.
RegressionScore evaluate_text_regression(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    const BertTokenizer& tokenizer,
    const std::vector<LabelledEncoding>& examples,
    int64_t batch_size);

} // namespace tessera::zoo
