// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training and scoring any model of the zoo that has a loss.

#include "tessera/zoo/tasks/example_batches.h"
#include "tessera/zoo/tasks/model_task.h"

#include <memory>

namespace tessera::zoo {

/// The model's loss over shuffled batches of examples in files. The second
/// encoder of a MocoModel follows the first behind each step.
class ExamplesTask : public ModelTask {
 public:
  /// @param model with a head, or a stage's part of one.
  /// @param batches, parallel and what `engine` stands for outlive the task.
  ExamplesTask(
      const std::shared_ptr<zoo::Model>& model,
      size_t examples,
      const ExampleBatches& batches,
      EngineRef engine,
      ParallelRun& parallel,
      const Options& options);

  void after_step(int64_t step, int64_t steps) override;

 private:
  std::shared_ptr<zoo::Model> model_;
  EngineRef engine_;
};

/// What was predicted right.
enum class ScoredItem { kNothing, kExamples, kTokens, kAnswers };

struct ExamplesScore {
  /// Mean over labels of tokens, or over examples.
  double loss = 0;
  int64_t examples = 0;
  ScoredItem item = ScoredItem::kNothing;
  int64_t items = 0; ///< that have a label
  double accuracy = 0; ///< share of them; of answers, begin and end are right
};

/// Scores the wrapped model on all examples. Collective.
/// @param accuracy false: the loss alone.
/// @return the same on all ranks.
ExamplesScore evaluate_examples(
    ParallelRun& parallel,
    EngineRef engine,
    zoo::Model& model,
    size_t examples,
    const ExampleBatches& batches,
    int64_t batch_size,
    bool accuracy);

} // namespace tessera::zoo
