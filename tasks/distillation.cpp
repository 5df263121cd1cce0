// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/distillation.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/zoo/layers/losses.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace {

/// Where the logits have a label; undefined: everywhere.
at::Tensor labeled(const zoo::Head& head, const at::Tensor& labels) {
  switch (head.labels()) {
    case zoo::HeadLabels::kNextTokens:
      return zoo::next_token_targets(labels).ne(-100);
    case zoo::HeadLabels::kTokens:
      return labels.ne(-100);
    case zoo::HeadLabels::kClass:
      return labels.is_floating_point() ? at::Tensor()
                                        : labels.flatten().ne(-100);
    default:
      return {};
  }
}

/// The classes of a config.json by number, if it names them.
nlohmann::json names_of_classes(const zoo::Model& model) {
  const auto found = model.config().find("id2label");
  return found == model.config().end() ? nlohmann::json() : *found;
}

const at::Tensor& hidden_state(
    const std::vector<at::Tensor>& states,
    int64_t layer,
    const char* whose) {
  TESSERA_CHECK(
      layer < static_cast<int64_t>(states.size()),
      "distill.{}_layers has {}, but that model has {} layers; 0 stands for its embeddings",
      whose,
      layer,
      static_cast<int64_t>(states.size()) - 1);
  return states[static_cast<size_t>(layer)];
}

} // namespace

void visit_fields(runtime::OptionFields& fields, DistillationOptions& options) {
  fields.object("model", options.model, "the teacher");
  fields.field(
      "temperature",
      options.temperature,
      {.min = 0, .open_min = true},
      "of both softmaxes; the loss of soft targets is multiplied by its square");
  fields.field(
      "alpha",
      options.alpha,
      {.min = 0, .max = 1},
      "weight of the soft targets; that of the labels is 1 - alpha");
  fields.field(
      "hidden_weight",
      options.hidden_weight,
      {.min = 0},
      "weight of the mean squared difference of hidden states; 0: it is not computed");
  fields.field(
      "student_layers",
      options.student_layers,
      {.min = 0},
      "with `hidden_weight`: the layers whose outputs are compared, from 1; 0: the embeddings");
  fields.field(
      "teacher_layers",
      options.teacher_layers,
      {.min = 0},
      "as many layers of the teacher");
}

void check(const DistillationOptions& options) {
  const bool compares = options.hidden_weight > 0;
  TESSERA_CHECK(
      options.student_layers.size() == options.teacher_layers.size() &&
          compares == !options.student_layers.empty(),
      "distill: student_layers has {} layers, teacher_layers {}, and hidden_weight is {}; give as many layers of both, and a weight above 0, or none of them",
      options.student_layers.size(),
      options.teacher_layers.size(),
      options.hidden_weight);
}

DistillationLoss::DistillationLoss(
    const DistillationOptions& options,
    const zoo::Model& student,
    const zoo::Head& head,
    std::unique_ptr<FrozenModel> teacher)
    : options_(options), head_(head), teacher_(std::move(teacher)) {
  const zoo::HeadLabels kind = head.labels();
  TESSERA_CHECK(
      kind == zoo::HeadLabels::kNextTokens ||
          kind == zoo::HeadLabels::kTokens || kind == zoo::HeadLabels::kClass,
      "distill: a {} does not predict one of several classes or tokens, of which soft targets are made",
      student.architecture());
  const zoo::Model& other = teacher_->model();
  const auto names = names_of_classes(student);
  const auto others = names_of_classes(other);
  TESSERA_CHECK(
      kind != zoo::HeadLabels::kClass || names.is_null() || others.is_null() ||
          names == others,
      "distill: the classes of the teacher are {}, those of the model {}; both need the same in the same order (id2label in config.json)",
      runtime::show_json(others),
      runtime::show_json(names));
}

at::Tensor DistillationLoss::hidden_loss(
    const zoo::ModelInput& batch,
    const zoo::ModelOutput& student,
    const zoo::ModelOutput& teacher) const {
  at::Tensor sum;
  for (size_t i = 0; i < options_.student_layers.size(); ++i) {
    const at::Tensor& self_state = hidden_state(
        student.hidden_states, options_.student_layers[i], "student");
    const at::Tensor& other = hidden_state(
        teacher.hidden_states, options_.teacher_layers[i], "teacher");
    TESSERA_CHECK(
        self_state.sizes() == other.sizes(),
        "distill: hidden states of layer {} are {}, those of layer {} of the teacher {}; they can only be compared if they have the same features",
        options_.student_layers[i],
        self_state.sizes(),
        options_.teacher_layers[i],
        other.sizes());
    const at::Tensor squares =
        (self_state.to(at::kFloat) - other.to(at::kFloat)).square().mean(-1);
    const at::Tensor mean = batch.attention_mask.defined()
                                ? (squares * batch.attention_mask).sum() /
                                      batch.attention_mask.sum()
                                : squares.mean();
    sum = sum.defined() ? sum + mean : mean;
  }
  return sum / static_cast<double>(options_.student_layers.size());
}

at::Tensor DistillationLoss::loss(
    zoo::Model& model,
    const zoo::ModelInput& batch) {
  const bool compares = options_.hidden_weight > 0;
  zoo::ModelInput input = batch;
  input.loss_only = false;
  input.hidden_states = compares;
  // First, so that it does not run beside the activations of the other one.
  const zoo::ModelOutput soft = teacher_->forward(input);
  const zoo::ModelOutput self_output = model.forward(input);
  TESSERA_CHECK(
      self_output.loss.defined() && self_output.logits.defined() &&
          soft.logits.defined(),
      "distill: {} has no {}; both models need a head for the same classes or tokens",
      soft.logits.defined() ? "the model" : "the teacher",
      self_output.loss.defined() ? "logits" : "loss");
  TESSERA_CHECK(
      self_output.logits.sizes() == soft.logits.sizes(),
      "distill: the logits of the model are {}, those of the teacher {}; both need the same classes, or the same vocabulary",
      self_output.logits.sizes(),
      soft.logits.sizes());
  at::Tensor loss = options_.alpha * zoo::distillation_loss(
                                         self_output.logits,
                                         soft.logits,
                                         options_.temperature,
                                         labeled(head_, batch.labels)) +
                    (1 - options_.alpha) * self_output.loss;
  if (compares) {
    loss =
        loss + options_.hidden_weight * hidden_loss(batch, self_output, soft);
  }
  return loss;
}

} // namespace tessera::tasks
