// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/examples_task.h"

#include "tessera/zoo/layers/losses.h"
#include "tessera/zoo/models/moco_model.h"

#include <ATen/ops/tensor.h>
#include <torch/types.h>

namespace tessera::zoo {

namespace {

ScoredItem item_of(const TrainedHead& head) {
  switch (head.kind) {
    case HeadKind::kClasses:
      return head.classes > 0 && !head.has_several_labels
                 ? ScoredItem::kExamples
                 : ScoredItem::kNothing;
    case HeadKind::kChoices:
      return ScoredItem::kExamples;
    case HeadKind::kAnswers:
      return ScoredItem::kAnswers;
    case HeadKind::kSecondText:
      return ScoredItem::kTokens;
    default:
      return labels_follow_input(head.kind) ? ScoredItem::kTokens
                                            : ScoredItem::kNothing;
  }
}

/// Rows of a batch.
int64_t rows_of(const zoo::ModelInput& input) {
  return input.named().begin()->second.size(0);
}

double count(const at::Tensor& flags) {
  return flags.sum().item<double>();
}

/// Sums over the batches of this rank.
class Sums {
 public:
  Sums(const TrainedHead& head, bool accuracy)
      : head_(head), item_(item_of(head)), accuracy_(accuracy) {}

  void add(const zoo::ModelInput& input, const zoo::ModelOutput& output) {
    const auto rows = static_cast<double>(rows_of(input));
    double weight = rows;
    switch (item_) {
      case ScoredItem::kNothing:
        break;
      case ScoredItem::kAnswers:
        weight = add_answers(input, output);
        break;
      case ScoredItem::kExamples:
        weight = add_labels(input.labels, output.logits);
        break;
      case ScoredItem::kTokens: {
        const at::Tensor labels = head_.kind == HeadKind::kNextTokens
                                      ? zoo::next_token_targets(input.labels)
                                      : input.labels;
        const double tokens = add_labels(
            labels,
            head_.kind == HeadKind::kPreTraining && accuracy_
                ? output.others.at("prediction_logits")
                : output.logits);
        // The pretraining loss is the sum of a mean over tokens and a mean over
        // rows.
        weight = head_.kind == HeadKind::kPreTraining ? rows : tokens;
      }
    }
    rows_ += rows;
    if (weight > 0) { // else the loss is NaN
      loss_ += weight * output.loss.item<double>();
      weight_ += weight;
    }
  }

  /// Sums over all ranks of the job. Collective.
  ExamplesScore total(Engine& engine) const {
    const at::Tensor sums =
        at::tensor({loss_, weight_, rows_, right_, items_}, at::kDouble);
    engine.sum_over_ranks(sums);
    const auto* totals = sums.const_data_ptr<double>();
    ExamplesScore score;
    score.loss = totals[0] / totals[1];
    score.examples = static_cast<int64_t>(totals[2]);
    score.items = static_cast<int64_t>(totals[4]);
    if (accuracy_ && score.items > 0) {
      score.item = item_;
      score.accuracy = totals[3] / totals[4];
    }
    return score;
  }

 private:
  /// @return the number of labels.
  double add_labels(const at::Tensor& labels, const at::Tensor& logits) {
    const at::Tensor counts = labels.ne(-100);
    const double items = count(counts);
    items_ += items;
    if (accuracy_) {
      // -100 is never predicted.
      right_ += count(logits.argmax(-1).eq(labels));
    }
    return items;
  }

  /// @return the number of answers inside the sequence.
  double add_answers(
      const zoo::ModelInput& input,
      const zoo::ModelOutput& output) {
    const at::Tensor from = input.others.at("start_positions").flatten();
    const at::Tensor to = input.others.at("end_positions").flatten();
    const at::Tensor& start = output.others.at("start_logits");
    const at::Tensor& end = output.others.at("end_logits");
    const int64_t length = start.size(1);
    const auto inside = [&](const at::Tensor& places) {
      return places.ge(0).logical_and(places.lt(length));
    };
    const double items = count(inside(from).logical_and(inside(to)));
    items_ += items;
    right_ +=
        count(start.argmax(-1).eq(from).logical_and(end.argmax(-1).eq(to)));
    return items;
  }

  const TrainedHead& head_;
  ScoredItem item_;
  bool accuracy_;
  double loss_ = 0;
  double weight_ = 0;
  double rows_ = 0;
  double right_ = 0;
  double items_ = 0;
};

} // namespace

ExamplesTask::ExamplesTask(
    const std::shared_ptr<zoo::Model>& model,
    size_t examples,
    const ExampleBatches& batches,
    Engine& engine,
    ParallelRun& parallel,
    const Options& options)
    : ModelTask(
          model,
          examples,
          [&batches](const std::vector<size_t>& rows, int64_t epoch) {
            return batches.make(rows, epoch, /*loss_only=*/true);
          },
          options),
      model_(model),
      engine_(engine) {
  if (auto* moco = dynamic_cast<zoo::MocoModel*>(model.get());
      moco != nullptr && parallel.batches().count > 1) {
    moco->gather_over(&parallel.groups()[ParallelGroup::kBatches]);
  }
}

void ExamplesTask::after_step(int64_t step, int64_t steps) {
  if (auto* moco = dynamic_cast<zoo::MocoModel*>(model_.get())) {
    zoo::update_momentum(engine_, *moco, moco->momentum_at(step, steps));
  }
}

ExamplesScore evaluate_examples(
    ParallelRun& parallel,
    Engine& engine,
    zoo::Model& model,
    size_t examples,
    const ExampleBatches& batches,
    int64_t batch_size,
    bool accuracy) {
  if (auto* moco = dynamic_cast<zoo::MocoModel*>(&model)) {
    // The last batches differ in size between ranks, so queries find keys in
    // their own batch only.
    moco->gather_over(nullptr);
  }
  Sums sums(batches.head(), accuracy);
  run_on_examples(
      parallel,
      model,
      examples,
      batch_size,
      [&](const std::vector<size_t>& rows, int64_t epoch) {
        return batches.make(rows, epoch, /*loss_only=*/!accuracy);
      },
      [&](const zoo::ModelInput& input, const zoo::ModelOutput& output) {
        sums.add(input, output);
      });
  return sums.total(engine);
}

} // namespace tessera::zoo
