// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/examples_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_reader.h"
#include "tessera/runtime/io/config_file.h"

#include <nlohmann/json.hpp>

#include <set>
#include <string>

namespace tessera::zoo {

void visit_fields(runtime::OptionFields& fields, ExamplesConfig& config) {
  visit_training_fields(fields, config, TaskKind::kExamples, [&] {
    visit_model_source(fields, config);
    fields.field(
        "classes",
        config.classes,
        "names of the classes, in the order of their ids, in place of config.json's");
    std::optional<std::string> problem;
    if (!config.problem_type.empty()) {
      problem = config.problem_type;
    }
    fields.choice(
        "problem_type",
        problem,
        problem_types(/*multi_label=*/true),
        "transformers' key, by default config.json's: `regression` predicts numbers");
    config.problem_type = problem.value_or("");
  });
  fields.group("data", "", [&] {
    fields.field(
        runtime::required("train"),
        config.train_file,
        "a safetensors file, or a folder of them in the order of their names");
    fields.field(
        "heldout",
        config.heldout_file,
        "as `data.train` (empty: nothing is scored)");
    ExampleOptions& examples = config.examples;
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
        config.accuracy,
        "with false, only the loss is scored, without materializing the logits of all tokens, which are large for large vocabularies");
  });
}

ExamplesConfig read_examples_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader =
      runtime::read_config_file(file, overrides);
  ExamplesConfig config;
  read_task(reader, TaskKind::kExamples);
  runtime::read_fields(reader, config);
  finish_training_config(reader, config);
  check_model_source(reader, config);
  const auto model = reader.get_object("model");
  if (std::set<std::string>(config.classes.begin(), config.classes.end())
          .size() != config.classes.size()) {
    model.fail("classes", "give each class a different name");
  }
  if (config.classes.size() == 1 && config.problem_type != "regression") {
    model.fail(
        "classes",
        "give at least two names, or none; to predict a number, set "
        "model.problem_type=regression");
  }
  const auto& mask = config.examples.token_mask;
  if (mask && mask->masked + mask->random > 1) {
    reader.get_object("data").get_object("mask").fail(
        "random", "`masked` and `random` must add up to at most 1");
  }
  config.examples.seed = config.seed;
  // Batches are then padded to their longest sequence.
  config.parallel.shapes_vary = config.examples.trim_padding;
  finish_config(reader, resolved);
  return config;
}

} // namespace tessera::zoo
