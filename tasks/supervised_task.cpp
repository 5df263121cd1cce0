// SPDX-License-Identifier: Apache-2.0
// The task "supervised": supervised fine-tuning of a language model on
// conversations, or on prompts and completions.
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/models/pretrained.h"

#include <memory>
#include <utility>

namespace tessera::tasks {

namespace {

void visit_supervised_model(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  fields.field(
      "max_length",
      config.max_length,
      {.min = 2},
      "tokens per sequence, of an encoder-decoder per input and target each; longer rows lose their end. At most the positions of the model");
}

void visit_supervised_rows(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  fields.one_or_many(
      runtime::required("train"),
      config.data.train,
      "JSON lines, CSV or TSV: one file or several, also patterns such as `data/*.jsonl`; a row is a conversation (JSON lines only), or a prompt and its completion");
  fields.one_or_many(
      "heldout", config.data.heldout, "the same (empty: nothing is scored)");
  auto& options = config.as<SupervisedOptions>();
  fields.choice(
      "preset",
      options.preset,
      supervised_presets(),
      "a common form of rows instead of the keys below: `alpaca` (`instruction`, perhaps `input`, and `output`), `sharegpt` (`conversations` of `from` and `value`)");
  fields.field(
      "messages_key",
      options.messages,
      "key of the conversation, `[{\"role\": \"user\", \"content\": \"Hi\"}, ...]`, which the tokenizer's chat template renders; what the assistant says is learned");
  fields.field("prompt_key", options.prompt, "key or column of the prompt");
  fields.field(
      "completion_key",
      options.completion,
      "key or column of what is learned: what follows the prompt, of an encoder-decoder its target");
  fields.field(
      "template",
      options.prompt_template,
      "instead of `prompt_key`: `summarize: {article} [completion]`, with keys or columns in braces");
  fields.field(
      "packed",
      options.packed,
      "several rows in one sequence of `model.max_length`, none of which sees another; by default if the model can keep them apart. Otherwise each row is padded to the longest of its batch");
  visit_fields(fields, options.rows);
  fields.one_or_many(
      "metric",
      options.metrics,
      "what is measured on texts generated for `data.heldout`, besides the loss: `bleu`, `rouge1`, `rouge2`, `rouge_l`, `rouge_lsum`, `exact_match`, `f1` (of words). By default nothing is generated");
  fields.field(
      "generate_heldout",
      options.generate_heldout,
      {.min = 1},
      "with `metric`: for how many of the first held-out rows a text is generated, greedily; every rank generates all of them");
  fields.field(
      "max_new_tokens",
      options.max_new_tokens,
      {.min = 1},
      "with `metric`: the longest generated text");
  fields.field(
      "rouge_stemmer",
      options.rouge_stemmer,
      "with `rouge1`, `rouge2`, `rouge_l` and `rouge_lsum`: compare the stems of English words, as rouge_score with `use_stemmer`");
}

void finish_supervised(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  finish_text_files(reader, config);
  const auto& options = config.as<SupervisedOptions>();
  const auto data = reader.get_object("data");
  reader.run_check([&] { generated_metrics_for(options.metrics); });
  if (!options.prompt_template.empty()) {
    if (options.preset) {
      data.fail(
          "template",
          "data.preset has prompts of its own; leave out one of them");
    }
    reader.run_check(
        [&] { PromptTemplate(options.prompt_template, kCompletionPlace); });
  }
  if (!options.metrics.empty() && config.data.heldout.empty()) {
    data.fail("metric", "it is measured on data.heldout; set it");
  }
  if (!options.metrics.empty() && config.parallel.sizes.context > 1) {
    data.fail(
        "metric",
        "texts are not generated under parallel.context; leave it out, and score the run by `tessera eval`");
  }
}

/// How rows become the inputs of the model.
/// @throws tessera::Error on options that the model does not support.
SupervisedInputs inputs_of(
    const TrainingConfig& config,
    const zoo::Model& model,
    const text::Tokenizer& tokenizer,
    int64_t multiple_of) {
  const bool is_decoder = !model.first_token();
  const bool can_pack = is_decoder && model.takes_documents();
  TESSERA_CHECK(
      can_pack || !packs_rows(config, model),
      "data.packed: a {} cannot keep rows apart; set it to false",
      model.architecture());
  SupervisedInputs inputs;
  inputs.kind = is_decoder ? PromptKind::kDecoder : PromptKind::kEncoderDecoder;
  inputs.is_packed = packs_rows(config, model);
  inputs.max_length = config.max_length;
  inputs.multiple_of = multiple_of;
  // Padding is behind what is looked at, or masked: any token will do.
  inputs.padding_token = padding_token(model.config(), tokenizer).value_or(0);
  TESSERA_CHECK(
      config.max_length % multiple_of == 0,
      "model.max_length is {}; to divide sequences over ranks, it must be a multiple of {}",
      config.max_length,
      multiple_of);
  return inputs;
}

SupervisedScoring scoring_of(
    const TrainingConfig& config,
    const text::Tokenizer& tokenizer,
    const SupervisedInputs& inputs) {
  const auto& options = config.as<SupervisedOptions>();
  SupervisedScoring scoring;
  scoring.metrics = generated_metrics_for(options.metrics);
  scoring.compared = options.rouge_stemmer ? text::RougeWords::kStems
                                           : text::RougeWords::kWhole;
  scoring.rows = options.generate_heldout;
  scoring.options.eos_token_id =
      zoo::generate_options(config.model_folder).eos_token_id;
  const int64_t end = tokenizer.special_id("eos_token").value();
  std::erase(scoring.options.eos_token_id, end);
  scoring.options.eos_token_id.push_back(end);
  scoring.options.pad_token_id = inputs.padding_token;
  scoring.options.max_new_tokens = options.max_new_tokens;
  return scoring;
}

zoo::WantedHead writing_head(const TrainingConfig& /*config*/) {
  return {"language model", [](const zoo::Head& head) {
            return head.labels() == zoo::HeadLabels::kNextTokens ||
                   !head.trimmed_with_labels().empty();
          }};
}

Task open_supervised(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  Task task;
  task.model = pretrained_model(
      config, zoo::layer_context(parallel), writing_head(config));
  task.head = head_of(*task.model);
  TESSERA_CHECK(
      !task.model->fills_blanks(),
      "supervised: a {} fills blanks, which this task does not train; use a decoder or an encoder-decoder",
      task.model->architecture());
  check_positions(*task.model, config.max_length);
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  const SupervisedInputs inputs = inputs_of(
      config, *task.model, tokenizer, parallel.batches().sequence_multiple);
  const SupervisedEncoder encoder(
      tokenizer,
      config.as<SupervisedOptions>(),
      inputs.kind,
      config.model_folder,
      task.head->vocab(),
      config.max_length);
  if (state != ModelState::kTrained) {
    task.train = std::make_unique<SupervisedBatches>(
        encoder.read(config.data.train),
        inputs,
        SupervisedScoring{},
        tokenizer,
        config.seed);
  }
  if (!config.data.heldout.empty()) {
    task.heldout = std::make_unique<SupervisedBatches>(
        encoder.read(config.data.heldout),
        inputs,
        scoring_of(config, tokenizer, inputs),
        tokenizer,
        config.seed);
  }
  return task;
}

} // namespace

const TaskKind kSupervised{
    .name = "supervised",
    .max_length = 1024,
    .options = options_of<SupervisedOptions>,
    .visit_model = visit_supervised_model,
    .visit_data = visit_supervised_rows,
    .finish = finish_supervised,
    .open = open_supervised,
    .wanted_head = writing_head};

} // namespace tessera::tasks
