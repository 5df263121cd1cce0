// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/tasks/training_config.h"

namespace tessera::tasks {

const std::vector<std::pair<std::string, const TaskKind*>>& task_kinds() {
  static const auto kinds = [] {
    std::vector<std::pair<std::string, const TaskKind*>> all;
    for (const TaskKind* kind :
         {&kTextClassification,
          &kQuestionAnswering,
          &kLanguageModel,
          &kSupervised,
          &kPreference,
          &kReward,
          &kImageFolder,
          &kExamples}) {
      all.emplace_back(kind->name, kind);
    }
    return all;
  }();
  return kinds;
}

void prepare_data(TrainingConfig& config, World& world, ModelState state) {
  if (config.task->prepare != nullptr) {
    config.task->prepare(config, world, state);
  }
}

std::unique_ptr<zoo::Head> head_of(zoo::Model& model) {
  auto head = model.head();
  TESSERA_CHECK(
      head != nullptr,
      "a {} has no head, and so no loss; name a class that has one in model.architecture, such as one for MaskedLM or SequenceClassification",
      model.architecture());
  return head;
}

void check_positions(const zoo::Model& model, int64_t max_length) {
  const auto limit = model.position_limit();
  TESSERA_CHECK(
      !limit || max_length <= *limit,
      "model.max_length is {}, but the model has {} positions; lower it",
      max_length,
      limit.value_or(0));
}

} // namespace tessera::tasks
