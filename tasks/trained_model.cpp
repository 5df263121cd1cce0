// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/trained_model.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/question_answering_data.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/pretrained.h"

#include <torch/utils.h>

#include <algorithm>
#include <utility>

namespace tessera::tasks {

namespace fs = std::filesystem;

namespace {

/// Texts of models without positions are not truncated.
constexpr int64_t kAnyLength = int64_t{1} << 20;

/// The task of predictions that a head is made for.
const TaskKind& predicted_task_of(const zoo::Head* head) {
  return head == nullptr             ? kTextClassification
         : head->finds_answers()     ? kQuestionAnswering
         : head->images() != nullptr ? kImageFolder
                                     : kTextClassification;
}

/// As a run of the task has it that names nothing but the model.
TrainingConfig default_config(
    const TaskKind& kind,
    const fs::path& folder,
    const zoo::Model& model,
    const std::vector<std::string>& overrides) {
  nlohmann::json json{
      {"task", kind.name},
      {"model", {{"folder", folder.string()}}},
      {"data", {{"train", ""}}},
      {"output", {{"folder", folder.string()}}}};
  const int64_t positions = model.position_limit().value_or(kAnyLength);
  if (&kind == &kTextClassification) {
    json["model"]["max_length"] = positions;
  } else if (&kind == &kQuestionAnswering) {
    const int64_t length = std::min(kind.max_length, positions);
    json["model"]["max_length"] = length;
    json["data"]["window_overlap"] =
        std::min(QuestionOptions().window_overlap, length / 2);
  }
  return read_training_config(runtime::ConfigReader(
      std::move(json), "predictions of '" + folder.string() + "'", overrides));
}

TrainedModel of_folder(
    const fs::path& folder,
    const std::vector<std::string>& overrides) {
  zoo::FromPretrainedOptions options;
  options.lazy = true;
  auto model = zoo::from_pretrained(folder, options);
  auto head = model->head();
  TrainingConfig config =
      default_config(predicted_task_of(head.get()), folder, *model, overrides);
  return {folder, std::move(config), std::move(model), std::move(head)};
}

TrainedModel of_run(
    const fs::path& folder,
    const std::vector<std::string>& overrides) {
  const TrainedRun run = trained_run(folder, overrides);
  TrainingConfig config = read_training_config(run.config, run.overrides);
  if (config.task->base_model == nullptr) {
    std::vector<std::string> names;
    for (const auto& [name, kind] : task_kinds()) {
      if (kind->base_model != nullptr) {
        names.push_back(name);
      }
    }
    TESSERA_FAIL(
        "'{}' is a run of the task {}; there are predictions for '{}'. Score it with `tessera eval`; models of language write texts with `tessera generate`",
        folder.string(),
        config.task->name,
        runtime::join_names(names));
  }
  std::shared_ptr<zoo::Model> model;
  if (run.adapter.empty()) {
    zoo::FromPretrainedOptions options;
    options.lazy = true;
    options.strict = config.strict;
    model = zoo::from_pretrained(config.model_folder, options);
  } else {
    // for newly initialized weights that the adapter does not have
    torch::manual_seed(config.seed);
    model = config.task->base_model(config, zoo::LayerContext());
    zoo::load_lora(*model, run.adapter);
    log_values_of_new_weights(*model, run.adapter);
  }
  auto head = model->head();
  return {folder, std::move(config), std::move(model), std::move(head)};
}

} // namespace

TrainedRun trained_run(
    const fs::path& run,
    const std::vector<std::string>& overrides) {
  TrainedRun trained{run / "config.json", {"parallel={}"}, {}};
  const AdaptedFolder folder = adapted_folder_of(run);
  if (!folder.adapter.empty()) {
    trained.adapter = folder.adapter; // LoRA that was not merged
  } else {
    const auto config = runtime::parse_json(
        runtime::read_text_file(trained.config), trained.config.string());
    trained.overrides.push_back("model.folder=" + folder.model.string());
    if (config.contains("model") && config["model"].contains("config")) {
      trained.overrides.emplace_back("model.config=");
    }
  }
  trained.overrides.insert(
      trained.overrides.end(), overrides.begin(), overrides.end());
  return trained;
}

void TrainedModel::place(c10::Device device) const {
  move_module(*model, device);
  materialize(*model);
  model->eval();
}

TrainedModel trained_model(
    const fs::path& folder,
    const std::vector<std::string>& overrides) {
  TESSERA_CHECK(
      fs::exists(folder / "config.json"),
      "'{}' {}; give the run folder of `tessera train`, or the folder of a model such as BertForSequenceClassification",
      folder.string(),
      fs::exists(folder) ? "has no config.json" : "does not exist");
  check_chooses_no_checkpoint(
      overrides,
      "make a model of it with `tessera export " + folder.string() +
          " --from CHECKPOINT --to FOLDER` (of an adapter also model.lora.merge=true), and give that folder");
  return is_run_folder(folder) ? of_run(folder, overrides)
                               : of_folder(folder, overrides);
}

} // namespace tessera::tasks
