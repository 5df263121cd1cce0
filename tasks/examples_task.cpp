// SPDX-License-Identifier: Apache-2.0
// The task "examples": any model that has a head, on inputs in safetensors
// files.
#include "tessera/tasks/examples_task.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/example_batches.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/training_config.h"

#include <set>
#include <string>

namespace tessera::tasks {

namespace {

void visit_examples_model(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  visit_model_source(fields, config);
  fields.field(
      "classes",
      config.classes,
      "names of the classes, in the order of their ids, in place of config.json's");
  visit_problem_type(
      fields,
      config,
      {"single_label_classification",
       "regression",
       "multi_label_classification"},
      "transformers' key, by default config.json's: `regression` predicts numbers");
}

void visit_examples(runtime::OptionFields& fields, TrainingConfig& config) {
  visit_path(
      fields,
      runtime::required("train"),
      config.data.train,
      "a safetensors file, or a folder of them in the order of their names");
  visit_path(
      fields,
      "heldout",
      config.data.heldout,
      "as `data.train` (empty: nothing is scored)");
  auto& options = config.as<ExampleTaskOptions>();
  zoo::ExampleOptions& examples = options.examples;
  fields.field(
      "trim_padding",
      examples.trim_padding,
      "remove columns that are padding in all rows of a batch, and masks without padding");
  fields.object("pixels", examples.pixels, "");
  fields.object(
      "mask",
      examples.token_mask,
      "labels are made by masking tokens of `input_ids`");
  fields.field(
      "patch_mask",
      examples.patch_mask,
      {.min = 0, .max = 1},
      "fraction of patches that masked image modeling masks");
  fields.field(
      "accuracy",
      options.accuracy,
      "with false, only the loss is scored, without materializing the logits of all tokens, which are large for large vocabularies");
}

void finish_examples(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  check_model_source(reader, config);
  const auto model = reader.get_object("model");
  if (std::set<std::string>(config.classes.begin(), config.classes.end())
          .size() != config.classes.size()) {
    model.fail("classes", "give each class a different name");
  }
  if (config.classes.size() == 1 && !config.is_regression()) {
    model.fail(
        "classes",
        "give at least two names, or none; to predict a number, set "
        "model.problem_type=regression");
  }
  auto& examples = config.as<ExampleTaskOptions>().examples;
  const auto& mask = examples.token_mask;
  if (mask && mask->masked + mask->random > 1) {
    reader.get_object("data").get_object("mask").fail(
        "random", "`masked` and `random` must add up to at most 1");
  }
  examples.seed = config.seed;
  // Batches are then padded to their longest sequence.
  config.parallel.shapes_vary = examples.trim_padding;
}

Task open_examples(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  Task task;
  task.model = configured_model(config, parallel);
  task.head = head_of(*task.model);
  const auto& task_options = config.as<ExampleTaskOptions>();
  zoo::ExampleOptions options = task_options.examples;
  options.sequence_multiple = parallel.batches().sequence_multiple;
  const auto open = [&](const std::filesystem::path& path) {
    return std::make_unique<ExampleBatches>(
        zoo::ExampleFiles(path),
        *task.head,
        task.model->architecture(),
        options,
        task_options.accuracy,
        at::kCPU);
  };
  if (state == ModelState::kFirst) {
    task.train = open(config.data.train_path());
  }
  if (!config.data.heldout.empty()) {
    task.heldout = open(config.data.heldout_path());
  }
  return task;
}

} // namespace

const TaskKind kExamples{
    .name = "examples",
    .max_length = 0,
    .options = options_of<ExampleTaskOptions>,
    .visit_model = visit_examples_model,
    .visit_data = visit_examples,
    .finish = finish_examples,
    .open = open_examples,
    .data_files = one_path};

} // namespace tessera::tasks
