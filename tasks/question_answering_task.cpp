// SPDX-License-Identifier: Apache-2.0
// The task "question_answering": questions with contexts, in which a model
// finds where answers begin and end.
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/question_answering_data.h"
#include "tessera/tasks/question_batches.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/training_config.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/pretrained.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tessera::tasks {

namespace {

void visit_answer_model(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.field(
      "max_length",
      config.max_length,
      {.min = 8},
      "tokens of a question with a window of its context. At most the positions of the model");
}

void visit_questions(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.one_or_many(
      runtime::required("train"),
      config.data.train,
      "files of SQuAD 1.1 or 2.0 as published, or JSON lines, CSV or TSV: one file or several, also patterns such as `data/*.csv`");
  fields.one_or_many(
      "heldout", config.data.heldout, "the same (empty: nothing is scored)");
  auto& options = config.as<QuestionOptions>();
  fields.field(
      "question_key",
      options.question,
      "in rows: key or column of the question");
  fields.field(
      "context_key",
      options.context,
      "in rows: key or column of the text that has the answer");
  fields.field(
      "answer_key",
      options.answer,
      "in rows: key or column of the answer as the context has it, or an array of several; empty: there is none. Without this key, `answers` is read as the `datasets` package writes it");
  fields.field(
      "answer_start_key",
      options.answer_start,
      "in rows: key or column of the number of the answer's first character (Unicode code point) in the context, from 0; an array for several");
  fields.field(
      "id_key",
      options.id,
      "in rows: key or column of a name for the question in messages");
  visit_fields(fields, options.rows);
  fields.field(
      "unanswerable",
      options.unanswerable,
      "questions may have no answer, as in SQuAD 2.0");
  fields.field(
      "no_answer_threshold",
      options.no_answer_threshold,
      {},
      "with `unanswerable`: a question has no answer if that scores higher than the best answer by more than this; the score of a run names the best one");
  fields.field(
      "window_overlap",
      options.window_overlap,
      {.min = 0},
      "tokens that windows of a long context have in common with the one before; by default at most half of `model.max_length`");
  fields.field(
      "max_answer_length",
      options.max_answer_tokens,
      {.min = 1},
      "tokens that predicted answers have at most");
  fields.field(
      "n_best",
      options.best_places,
      {.min = 1},
      "the most likely starts and ends of each window that answers are selected from");
}

void finish_questions(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  finish_text_files(reader, config);
  auto& overlap = config.as<QuestionOptions>().window_overlap;
  const auto data = reader.get_object("data");
  if (!data.contains("window_overlap")) {
    overlap = std::min(overlap, config.max_length / 2);
    data.resolve("window_overlap", overlap);
  }
  if (overlap >= config.max_length) {
    data.fail(
        "window_overlap",
        formatted(
            "set it below model.max_length, {}: windows have fewer tokens than that",
            config.max_length));
  }
}

zoo::WantedHead answer_head(const TrainingConfig& /*config*/) {
  return {"head that finds answers", [](const zoo::Head& head) {
            return head.vocab() > 0 && head.finds_answers();
          }};
}

std::shared_ptr<zoo::Model> answer_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  return pretrained_model(config, context, answer_head(config));
}

Task open_questions(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  const auto& options = config.as<QuestionOptions>();
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  const auto questions_of = [&](const std::vector<std::string>& names) {
    return read_questions(text::matching_files(names), options);
  };
  std::vector<AnsweredQuestion> train, heldout;
  if (state != ModelState::kTrained) {
    train = questions_of(config.data.train);
  }
  if (!config.data.heldout.empty()) {
    heldout = questions_of(config.data.heldout);
  }
  Task task;
  task.model = answer_model(config, zoo::layer_context(parallel));
  task.head = head_of(*task.model);
  check_positions(*task.model, config.max_length);
  TextInputs inputs =
      text_inputs(*task.model, *task.head, tokenizer, config.model_folder);
  inputs.multiple_of = parallel.batches().sequence_multiple;
  const auto batches_of = [&](std::vector<AnsweredQuestion> questions)
      -> std::unique_ptr<QuestionBatches> {
    if (questions.empty()) {
      return nullptr;
    }
    auto batches = std::make_unique<QuestionBatches>(
        std::move(questions), tokenizer, config.max_length, options, inputs);
    TESSERA_CHECK(
        batches->size() > 0,
        "data: no question leaves its context room in model.max_length, {}",
        config.max_length);
    for (const EncodedQuestion& question : batches->encoded()) {
      check_token_ids(
          question.encoding(question.context).ids(),
          tokenizer,
          task.head->vocab(),
          config.model_folder);
    }
    return batches;
  };
  task.train = batches_of(std::move(train));
  task.heldout = batches_of(std::move(heldout));
  return task;
}

} // namespace

const TaskKind kQuestionAnswering{
    .name = "question_answering",
    .max_length = 384,
    .options = options_of<QuestionOptions>,
    .visit_model = visit_answer_model,
    .visit_data = visit_questions,
    .finish = finish_questions,
    .open = open_questions,
    .base_model = answer_model,
    .wanted_head = answer_head};

} // namespace tessera::tasks
