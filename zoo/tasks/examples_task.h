// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExamplesTask` trains any model of the zoo that has a loss;
// evaluate_examples() scores it.

#include "tessera/zoo/tasks/example_batches.h"
#include "tessera/zoo/tasks/model_task.h"

#include <memory>

namespace tessera::zoo {

/// The model's loss over shuffled batches of examples in files. After each step
/// the momentum encoder of a MocoModel is updated.
class ExamplesTask : public ModelTask {
 public:
  /// @param model with a head, or a pipeline stage of one.
  /// @param batches, parallel and the engine behind `engine` outlive the task.
  ExamplesTask(
      const std::shared_ptr<zoo::Model>& model,
      size_t examples,
      const ExampleBatches& batches,
      Engine& engine,
      ParallelRun& parallel,
      const Options& options);

  void after_step(int64_t step, int64_t steps) override;

 private:
  std::shared_ptr<zoo::Model> model_;
  Engine& engine_;
};

/// The unit of accuracy.
enum class ScoredItem { kNothing, kExamples, kTokens, kAnswers };

struct ExamplesScore {
  /// Mean over token labels, or over examples.
  double loss = 0;
  int64_t examples = 0;
  ScoredItem item = ScoredItem::kNothing;
  int64_t items = 0; ///< the number that have a label
  /// fraction predicted correctly; an answer needs both its start and its end
  double accuracy = 0;
};

/// Scores the wrapped model on all examples. Collective.
/// @param accuracy false: the loss only.
/// @return the same on all ranks.
ExamplesScore evaluate_examples(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    size_t examples,
    const ExampleBatches& batches,
    int64_t batch_size,
    bool accuracy);

} // namespace tessera::zoo
