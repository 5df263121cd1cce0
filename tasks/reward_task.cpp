// SPDX-License-Identifier: Apache-2.0
// The task "reward": a decoder with a head of one output learns to give the
// better of two answers the higher score.
#include "tessera/tasks/reward_task.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/preference_task.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/pretrained.h"

#include <memory>
#include <utility>

namespace tessera::tasks {

SupervisedOptions RewardTaskOptions::texts() const {
  SupervisedOptions options;
  options.rows = rows;
  options.prompt = keys.prompt;
  options.completion = completion;
  return options;
}

SupervisedInputs reward_inputs(
    const TrainingConfig& config,
    const zoo::Model& model,
    const zoo::Head& head,
    const text::Tokenizer& tokenizer) {
  SupervisedInputs inputs;
  inputs.max_length = config.max_length;
  inputs.padding_token =
      text_inputs(model, head, tokenizer, config.model_folder).padding_token;
  return inputs;
}

namespace {

void visit_reward_model(runtime::OptionFields& fields, TrainingConfig& config) {
  config.problem_type = "regression"; // one output
  fields.field(
      "max_length",
      config.max_length,
      {.min = 4},
      "tokens of a prompt with its answer; what is longer loses its end. At most the positions of the model");
}

void visit_reward_rows(runtime::OptionFields& fields, TrainingConfig& config) {
  auto& options = config.as<RewardTaskOptions>();
  visit_pair_rows(
      fields,
      config,
      options.keys,
      "JSON lines, CSV or TSV: one file or several, also patterns; a row is a prompt with a better and a worse answer: texts, or (JSON lines only) lists of messages, which the tokenizer's chat template renders. Without a prompt, both are whole texts or conversations");
  fields.field(
      "margin_key",
      options.keys.margin,
      "key or column, which rows may have, of how much higher the reward of the better answer is to be");
  fields.field(
      "completion_key",
      options.completion,
      "of rows that `tessera predict` gives a reward: key or column of the answer");
  visit_fields(fields, options.rows);
}

void visit_reward_sections(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  fields.object("reward", config.as<RewardTaskOptions>().reward, "");
}

zoo::WantedHead rewarding_head(const TrainingConfig& /*config*/) {
  return {"classifier of texts", classifies_texts};
}

std::shared_ptr<zoo::Model> reward_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  auto model = lazy_text_classifier(
      config.model_folder,
      class_fields({}, config.problem_type),
      context,
      config.strict,
      &tokenizer);
  TESSERA_CHECK(
      !model->first_token(),
      "reward: a {} is an encoder-decoder, which this task does not train; use a decoder",
      model->architecture());
  return model;
}

Task open_reward(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  Task task;
  task.model = reward_model(config, zoo::layer_context(parallel));
  task.head = head_of(*task.model);
  check_positions(*task.model, config.max_length);
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  const auto& options = config.as<RewardTaskOptions>();
  SupervisedInputs inputs =
      reward_inputs(config, *task.model, *task.head, tokenizer);
  inputs.multiple_of = parallel.batches().sequence_multiple;
  const SupervisedOptions rows = pair_row_options(options.rows, options.keys);
  const auto read = [&](const std::vector<std::string>& files) {
    const SupervisedEncoder texts(
        tokenizer,
        rows,
        PromptKind::kDecoder,
        config.model_folder,
        task.head->vocab(),
        config.max_length);
    return std::make_unique<PreferenceBatches>(
        PreferenceEncoder(texts, rows, options.keys).read(files),
        inputs,
        config.seed,
        PairKind::kTexts);
  };
  if (state != ModelState::kTrained) {
    task.train = read(config.data.train);
  }
  if (!config.data.heldout.empty()) {
    task.heldout = read(config.data.heldout);
  }
  return task;
}

std::unique_ptr<BatchLoss> reward_loss(
    TrainingConfig& config,
    World& /*world*/,
    ParallelRun& /*parallel*/,
    const Task& /*task*/,
    const MakeFrozenModel& /*make*/) {
  return std::make_unique<RewardLoss>(config.as<RewardTaskOptions>().reward);
}

} // namespace

const TaskKind kReward{
    .name = "reward",
    .max_length = 1024,
    .options = options_of<RewardTaskOptions>,
    .visit_model = visit_reward_model,
    .visit_data = visit_reward_rows,
    .finish = finish_pairs,
    .open = open_reward,
    .base_model = reward_model,
    .visit_sections = visit_reward_sections,
    .make_loss = reward_loss,
    .wanted_head = rewarding_head};

} // namespace tessera::tasks
