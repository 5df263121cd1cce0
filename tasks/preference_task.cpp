// SPDX-License-Identifier: Apache-2.0
// The task "preference": a language model learns to prefer the better of two
// answers, by DPO or one of its relatives.
#include "tessera/tasks/preference_task.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/tasks/kto_batches.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/preference_loss.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/text_batches.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"

#include <memory>
#include <utility>

namespace tessera::tasks {

void visit_pair_rows(
    runtime::OptionFields& fields,
    TrainingConfig& config,
    PreferenceKeys& keys,
    const char* files_doc) {
  fields.one_or_many(runtime::required("train"), config.data.train, files_doc);
  fields.one_or_many(
      "heldout",
      config.data.heldout,
      "the same (empty: nothing is scored): loss, accuracy (pairs whose better answer has the higher reward), margin and rewards");
  fields.field("prompt_key", keys.prompt, "key or column of the prompt");
  fields.field("chosen_key", keys.chosen, "key or column of the better answer");
  fields.field(
      "rejected_key", keys.rejected, "key or column of the worse answer");
}

void finish_pairs(const runtime::ConfigReader& reader, TrainingConfig& config) {
  finish_text_files(reader, config);
  if (config.parallel.sizes.pipeline > 1 || config.parallel.sizes.context > 1) {
    reader.get_object("parallel")
        .fail(
            "pipeline",
            formatted(
                "the task {} does not know pipeline and context parallelism; set both to 1",
                config.task->name));
  }
}

SupervisedOptions pair_row_options(
    const text::TextRowOptions& rows,
    const PreferenceKeys& keys) {
  SupervisedOptions options;
  options.rows = rows;
  options.prompt = keys.prompt;
  // Names that rows do not have.
  options.messages = "(messages)";
  options.completion = "(completion)";
  return options;
}

namespace {

void visit_preference_model(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  fields.field(
      "max_length",
      config.max_length,
      {.min = 4},
      "tokens of a prompt with its answer; packed, of a sequence, where a prompt with its answer has half of it; what is longer loses its end. At most the positions of the model");
}

void visit_preference_rows(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  auto& options = config.as<PreferenceTaskOptions>();
  visit_pair_rows(
      fields,
      config,
      options.keys,
      "JSON lines, CSV or TSV: one file or several, also patterns; a row is a prompt with a better and a worse answer: texts, or (JSON lines only) lists of messages, which the tokenizer's chat template renders. Without a prompt, both are whole conversations. With the loss `kto` also a prompt with one answer and whether that is good");
  fields.field(
      "completion_key",
      options.keys.completion,
      "with the loss `kto`: key or column of an answer that has no counterpart");
  fields.field(
      "label_key",
      options.keys.label,
      "with the loss `kto`: key or column of whether that answer is good, true or false");
  fields.field(
      "packed",
      options.packed,
      "several pairs in one sequence of `model.max_length`, in which no answer sees another; by default, and when they are scored, each answer is padded to the longest of its batch");
  visit_fields(fields, options.rows);
}

void visit_preference_sections(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  fields.object(
      "preference", config.as<PreferenceTaskOptions>().preference, "");
}

void finish_preference(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  finish_pairs(reader, config);
  const auto section = reader.get_object("preference");
  const PreferenceOptions& options =
      config.as<PreferenceTaskOptions>().preference;
  if (options.reference && options.reference_free) {
    section.fail(
        "reference_free", "preference.reference is one; leave out either");
  }
  if (options.has_reference() && !options.reference && !config.lora) {
    section.fail(
        "reference",
        "training needs a reference: train an adapter (model.lora), whose base "
        "is one, or name its folder in preference.reference.folder, or choose "
        "a loss without one, or set preference.reference_free=true");
  }
  if (const auto& task_options = config.as<PreferenceTaskOptions>();
      task_options.is_packed() && !task_options.has_pairs()) {
    reader.get_object("data").fail(
        "packed",
        formatted(
            "the loss {} needs each answer in a row of its own; leave it out",
            rule_of(options.loss).name));
  }
}

zoo::WantedHead preferring_head(const TrainingConfig& /*config*/) {
  return {"decoder of language", [](const zoo::Head& head) {
            return head.labels() == zoo::HeadLabels::kNextTokens;
          }};
}

/// @throws tessera::Error on options that the model does not support.
SupervisedInputs inputs_of_pairs(
    const TrainingConfig& config,
    const zoo::Model& model,
    const text::Tokenizer& tokenizer,
    bool packs,
    int64_t multiple_of) {
  TESSERA_CHECK(
      !packs || model.takes_documents(),
      "data.packed: a {} cannot keep answers apart; set it to false",
      model.architecture());
  TESSERA_CHECK(
      config.max_length % multiple_of == 0,
      "model.max_length is {}; to divide sequences over ranks, it must be a multiple of {}",
      config.max_length,
      multiple_of);
  return {
      .kind = PromptKind::kDecoder,
      .is_packed = packs,
      .max_length = config.max_length,
      .multiple_of = multiple_of,
      .padding_token = padding_token(model.config(), tokenizer).value_or(0)};
}

Task open_preference(
    const TrainingConfig& config,
    World& /*world*/,
    ParallelRun& parallel,
    ModelState state) {
  Task task;
  task.model = pretrained_model(
      config, zoo::layer_context(parallel), preferring_head(config));
  task.head = head_of(*task.model);
  check_positions(*task.model, config.max_length);
  const text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(config.model_folder);
  const auto& task_options = config.as<PreferenceTaskOptions>();
  const bool packs = task_options.is_packed();
  const int64_t multiple_of = parallel.batches().sequence_multiple;
  const SupervisedOptions rows =
      pair_row_options(task_options.rows, task_options.keys);
  const auto read = [&](const std::vector<std::string>& files,
                        bool is_packed) -> std::unique_ptr<zoo::DataSet> {
    const SupervisedEncoder texts(
        tokenizer,
        rows,
        PromptKind::kDecoder,
        config.model_folder,
        task.head->vocab(),
        packs ? config.max_length / 2 : config.max_length,
        packs ? "half of model.max_length, as pairs are packed"
              : "model.max_length");
    const PreferenceEncoder encoder(texts, rows, task_options.keys);
    const SupervisedInputs inputs =
        inputs_of_pairs(config, *task.model, tokenizer, is_packed, multiple_of);
    if (!task_options.has_pairs()) {
      return std::make_unique<KtoBatches>(
          encoder.read_judged(files), inputs, task_options.preference);
    }
    return std::make_unique<PreferenceBatches>(
        encoder.read(files), inputs, config.seed);
  };
  if (state != ModelState::kTrained) {
    task.train = read(config.data.train, packs);
  }
  if (!config.data.heldout.empty()) {
    task.heldout = read(config.data.heldout, /*is_packed=*/false);
  }
  return task;
}

std::unique_ptr<BatchLoss> preference_loss(
    TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    const Task& task,
    const MakeFrozenModel& make) {
  const PreferenceOptions& options =
      config.as<PreferenceTaskOptions>().preference;
  std::unique_ptr<FrozenModel> reference;
  if (options.reference) {
    reference = std::make_unique<FrozenModel>(
        *options.reference,
        "the reference (preference.reference)",
        world,
        parallel,
        config,
        make);
  } else if (options.has_reference()) {
    TESSERA_CHECK(
        zoo::has_lora(*task.model),
        "preference: there is no reference, since the adapter has been merged into the model; name the model that was adapted in preference.reference.folder");
    const zoo::AdaptersOff can_be_off(*task.model);
  }
  if (!rule_of(options.loss).has_pairs()) {
    return std::make_unique<KtoLoss>(options, std::move(reference));
  }
  return std::make_unique<PreferenceLoss>(options, std::move(reference));
}

} // namespace

const TaskKind kPreference{
    .name = "preference",
    .max_length = 1024,
    .options = options_of<PreferenceTaskOptions>,
    .visit_model = visit_preference_model,
    .visit_data = visit_preference_rows,
    .finish = finish_preference,
    .open = open_preference,
    .visit_sections = visit_preference_sections,
    .make_loss = preference_loss,
    .wanted_head = preferring_head};

} // namespace tessera::tasks
