// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/heads/class_heads.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/zoo/inputs/column_checks.h"

#include <torch/types.h>

#include <utility>

namespace tessera::zoo {

namespace {

HeadLabels labels_of(const ClassifierOptions& options) {
  const std::string problem = options.problem_type.value_or("");
  return problem == "regression" || (problem.empty() && options.labels == 1)
             ? HeadLabels::kNumbers
         : problem == "multi_label_classification" ? HeadLabels::kClasses
                                                   : HeadLabels::kClass;
}

} // namespace

ClassHead::ClassHead(HeadInputs inputs, const ClassifierOptions& options)
    : StandardHead(std::move(inputs)),
      labels_(labels_of(options)),
      classes_(options.labels),
      takes_chances_(options.problem_type == "single_label_classification") {}

void ClassHead::check_labels(const ColumnChecks& examples) const {
  const auto& labels = examples.need("labels");
  const bool has_all = labels.row_shape == std::vector<int64_t>{classes_};
  if (labels_ == HeadLabels::kClasses) {
    examples.shape("labels", {classes_});
    examples.flags(labels);
  } else if (labels_ == HeadLabels::kNumbers) {
    TESSERA_CHECK(
        has_all || (classes_ == 1 && labels.row_shape.empty()),
        "{} is {}; the model predicts {} for each row, which takes {}; give model.classes a name for each number of a row, or one number per row",
        examples.place("labels"),
        show(labels),
        runtime::count_text(classes_, "number"),
        classes_ == 1 ? shape_text({}) : shape_text({classes_}));
  } else if (is_floating(labels.dtype) || !labels.row_shape.empty()) {
    TESSERA_CHECK(
        is_floating(labels.dtype) && has_all && takes_chances_,
        "{} is {}; classes must be integers, [rows]; for several labels per row, {} of 0 and 1, set model.problem_type=multi_label_classification, for numbers model.problem_type=regression",
        examples.place("labels"),
        show(labels),
        shape_text({classes_}));
  } else {
    examples.range(labels, classes());
  }
}

void ClassHead::complete(NamedTensors& batch) const {
  if (labels_ == HeadLabels::kClasses) {
    batch["labels"] = batch.at("labels").to(at::kFloat);
  }
}

Metric ClassHead::metric() const {
  return labels_ == HeadLabels::kClass ? Metric{"accuracy", "examples"}
                                       : Metric{};
}

LossCounts ClassHead::loss_counts(const ModelInput& batch) const {
  return labels_ == HeadLabels::kClass && batch.labels.defined() &&
                 !batch.labels.is_floating_point()
             ? LossCounts{count_labels(batch.labels)}
             : Head::loss_counts(batch);
}

bool ClassHead::has_equal_counts(const ColumnChecks& examples) const {
  const ColumnChecks::Column* labels = examples.files().find("labels");
  bool has_all = true;
  if (labels_ == HeadLabels::kClass && labels != nullptr &&
      !is_floating(labels->dtype)) {
    examples.for_each_rows(*labels, [&](const at::Tensor& values) {
      has_all = has_all && values.ne(-100).all().item<bool>();
    });
  }
  return has_all;
}

void ClassHead::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  if (labels_ == HeadLabels::kClass) {
    const at::Tensor& labels = batch.input.labels;
    sums.add_labels(
        labels.is_floating_point() ? labels.argmax(-1) : labels,
        batch.logits());
  } else if (labels_ == HeadLabels::kNumbers && batch.has_metric) {
    sums.add_numbers(batch.input.labels, batch.output.logits);
  }
  sums.add_loss(batch, loss_counts(batch.input).first);
}

void ChoiceHead::check_labels(const ColumnChecks& examples) const {
  const auto& labels = examples.need("labels");
  examples.shape("labels", {});
  examples.range(labels, examples.need("input_ids").row_shape.front());
}

void AnswerHead::check_labels(const ColumnChecks& examples) const {
  examples.need("start_positions");
  examples.need("end_positions");
}

bool AnswerHead::has_labels(const NamedTensors& batch) const {
  const LossCounts counts = loss_counts(ModelInput::from_named(batch));
  return counts.first > 0 || counts.second > 0;
}

LossCounts AnswerHead::loss_counts(const ModelInput& batch) const {
  // Encoder-decoders predict places of their second half.
  const at::Tensor& ids = batch.decoder_input_ids.defined()
                              ? batch.decoder_input_ids
                              : batch.input_ids;
  const at::Tensor logits =
      torch::zeros(ids.sizes(), ids.options().dtype(at::kFloat));
  const auto count = [&](const char* name) {
    return answer_places(batch, logits, batch.others.at(name)).count();
  };
  return {count("start_positions"), count("end_positions")};
}

void AnswerHead::add_score(const ScoredBatch& batch, ScoreSums& sums) const {
  const auto places_of = [&](const char* logits, const char* positions) {
    return answer_places(
        batch.input,
        batch.output.others.at(logits),
        batch.input.others.at(positions));
  };
  const AnswerPlaces start = places_of("start_logits", "start_positions");
  const AnswerPlaces end = places_of("end_logits", "end_positions");
  const auto count = [](const at::Tensor& flags) {
    return flags.sum().item<double>();
  };
  sums.items += count(start.targets.ne(-100).logical_and(end.targets.ne(-100)));
  const auto is_found = [](const AnswerPlaces& answers) {
    return answers.logits.argmax(-1).eq(answers.targets);
  };
  sums.right += count(is_found(start).logical_and(is_found(end)));
  sums.add_losses(
      batch, {start.loss() / 2, start.count()}, {end.loss() / 2, end.count()});
}

} // namespace tessera::zoo
