// SPDX-License-Identifier: Apache-2.0
// The task "language_model": predicts tokens of text, or in files of tokens.
#include "tessera/tasks/language_model_task.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/hub/fetch.h"
#include "tessera/runtime/random/mixed_bits.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/tokenized_data.h"
#include "tessera/tasks/training_config.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/data/objective.h"
#include "tessera/zoo/data/packed_batches.h"
#include "tessera/zoo/data/token_batches.h"
#include "tessera/zoo/data/token_documents.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <ATen/ops/tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tasks {

namespace {

const LanguageModelOptions& token_options(const TrainingConfig& config) {
  return config.as<LanguageModelOptions>();
}

void visit_language_model(
    runtime::OptionFields& fields,
    TrainingConfig& config) {
  visit_model_source(fields, config);
  fields.field(
      "max_length",
      config.max_length,
      {.min = 2},
      "tokens per sequence. At most the positions of the model");
}

void visit_tokens(runtime::OptionFields& fields, TrainingConfig& config) {
  auto& options = config.as<LanguageModelOptions>();
  fields.one_or_many(
      "train",
      config.data.train,
      "text, as one file, several, or patterns such as `texts/**/*.txt`, which is tokenized before the first step, once (`data.text`); or a token file: of `tessera tokenize` or Megatron (PREFIX, PREFIX.bin or PREFIX.idx), of llm.c, or one without a header; either this or `data.blend`");
  fields.one_or_many(
      "heldout",
      config.data.heldout,
      "text, or a token file (empty: nothing is scored)");
  fields.choice(
      "token_type",
      options.token_type,
      {{"uint16", zoo::TokenType::kUint16}, {"int32", zoo::TokenType::kInt32}},
      "type of the tokens in a file without a header, as nanoGPT writes them (`numpy.array(ids, \"uint16\").tofile(\"train.bin\")`)");
  visit_fields(fields, options.tokens);
}

void finish_tokens(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  check_model_source(reader, config);
  const auto data = reader.get_object("data");
  zoo::TokenDataOptions& tokens = config.as<LanguageModelOptions>().tokens;
  if (are_fetched(config.hub_files)) {
    tokens.objective.tokenizer =
        runtime::local_path(tokens.objective.tokenizer, /*weights=*/false);
  }
  if (config.hub_files == HubFiles::kAll) {
    for (zoo::BlendedFile& file : tokens.blend) {
      file.path = runtime::local_path(file.path);
    }
  }
  if (config.data.train.empty() == tokens.blend.empty()) {
    data.fail(
        "train",
        "set either this, text or a token file, or data.blend, a list of token "
        "files with weights");
  }
  const auto& mask = tokens.objective.mask.tokens;
  if (mask.masked + mask.random > 1) {
    data.get_object("mask").fail(
        "random", "`masked` and `random` must add up to at most 1");
  }
  if (tokens.split > 0 && !config.data.heldout.empty()) {
    data.fail(
        "split",
        "it holds out a part of the training data; set either this or "
        "data.heldout");
  }
  const auto model = reader.get_object("model");
  if (tokens.objective.kind == zoo::ObjectiveKind::kBlankFilling &&
      !model.contains("max_length")) {
    // Blanks have the positions of the text around them, so that sequences with
    // blanks may have more tokens than the model has positions.
    config.max_length = kLanguageModel.max_length;
    model.resolve("max_length", config.max_length);
  }
}

/// @param names none: of data.blend.
std::vector<std::filesystem::path> token_data_files(
    const TrainingConfig& config,
    const std::vector<std::string>& names) {
  if (are_texts(names)) {
    return text::matching_files(names);
  }
  if (!names.empty()) {
    return zoo::token_files_of(names.front());
  }
  std::vector<std::filesystem::path> files;
  for (const zoo::BlendedFile& file : token_options(config).tokens.blend) {
    const auto found = zoo::token_files_of(file.path);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

/// data.tokenizer, or what `tessera tokenize` left beside the files.
std::filesystem::path tokenizer_of_tokens(const TrainingConfig& config) {
  const std::filesystem::path& given =
      token_options(config).tokens.objective.tokenizer;
  if (!given.empty()) {
    return given;
  }
  for (const std::filesystem::path& file : config.train_files()) {
    if (const auto found = zoo::tokenizer_beside(file);
        std::filesystem::is_directory(found)) {
      return found;
    }
  }
  return {};
}

std::shared_ptr<const zoo::TokenDocuments> opened(
    const TrainingConfig& config,
    const std::filesystem::path& path) {
  const LanguageModelOptions& options = token_options(config);
  return std::make_shared<const zoo::TokenDocuments>(
      path,
      zoo::TokenFileOptions{options.token_type, options.tokens.end_token});
}

/// The files that are trained on, and what they are drawn in proportion to.
struct TrainingFiles {
  std::vector<std::shared_ptr<const zoo::TokenDocuments>> files;
  std::vector<double> weights; ///< empty for one file
};

TrainingFiles opened_training_files(const TrainingConfig& config) {
  TrainingFiles opened_files;
  for (const zoo::BlendedFile& file : token_options(config).tokens.blend) {
    opened_files.files.push_back(opened(config, file.path));
    opened_files.weights.push_back(file.weight);
  }
  if (opened_files.files.empty()) {
    opened_files.files.push_back(opened(config, config.data.train_path()));
  }
  return opened_files;
}

void check_has_text(const zoo::TokenFile& tokens, int64_t length) {
  TESSERA_CHECK(
      tokens.size() >= length,
      "'{}' has {} tokens, fewer than one sequence of model.max_length, {}; only complete sequences count",
      tokens.path().string(),
      tokens.size(),
      length);
}

/// Checks that all tokens are in the vocabulary; each rank reads its share of
/// the file. Collective over the job.
/// @throws tessera::Error on all ranks, with file, position and value of the
///     first token that is not.
void check_tokens(World& world, const zoo::TokenFile& tokens, int64_t vocab) {
  const int64_t begin = tokens.size() * world.rank() / world.size();
  const int64_t end = tokens.size() * (world.rank() + 1) / world.size();
  const auto outside = tokens.first_outside(begin, end - begin, vocab);
  // The first one of all ranks has the largest distance to the end.
  const at::Tensor distance =
      at::tensor(outside ? tokens.size() - *outside : int64_t{0}, at::kLong);
  if (world.size() > 1) {
    world.new_communicator("token checks")
        ->all_reduce_max(distance, "the check of token ids")
        .wait();
  }
  if (const auto found = distance.item<int64_t>(); found > 0) {
    tokens.fail_outside(tokens.size() - found, vocab);
  }
}

/// The first id of `made` for which `other` has another token, or none.
std::optional<int64_t> first_other_token(
    const text::Tokenizer& made,
    const text::Tokenizer& other) {
  for (int64_t id = 0; id < made.size(); ++id) {
    if (made.token(id) != other.token(id)) {
      return id;
    }
  }
  return std::nullopt;
}

/// Compares the tokenizer that made each file with data.tokenizer, that of
/// model.folder and that of the first file, where they are known.
/// @throws tessera::Error naming file, token and remedy if data.tokenizer or
///     that of another file differs; for the model's there is a warning.
void check_tokenizers(
    const TrainingConfig& config,
    const std::vector<const TrainingFiles*>& parts) {
  namespace fs = std::filesystem;
  const fs::path& given = token_options(config).tokens.objective.tokenizer;
  std::optional<text::Tokenizer> chosen, first;
  fs::path first_folder;
  for (const TrainingFiles* part : parts) {
    for (const auto& file : part->files) {
      const fs::path folder = zoo::tokenizer_beside(file->file().path());
      if (!fs::is_directory(folder) || !zoo::has_tokenizer(folder)) {
        continue;
      }
      const text::Tokenizer made = text::Tokenizer::from_folder(folder);
      const auto difference = [&](const text::Tokenizer& other) -> std::string {
        const auto id = first_other_token(made, other);
        return id ? formatted(
                        "'{}' was made by the tokenizer in '{}', whose token {} is {}",
                        file->file().path().string(),
                        folder.string(),
                        *id,
                        runtime::show_json(made.token(*id))) +
                        (*id < other.size()
                             ? ", not " + runtime::show_json(other.token(*id))
                             : formatted(", and not one of {}", other.size()))
                  : "";
      };
      if (!given.empty()) {
        chosen = chosen ? chosen : text::Tokenizer::from_path(given);
        const std::string text = difference(*chosen);
        TESSERA_CHECK(
            text.empty(),
            "data.tokenizer is '{}', but {}; leave data.tokenizer out, or tokenize the text again with `tessera tokenize --model {}`",
            given.string(),
            text,
            given.string());
      } else if (first) {
        const std::string text = difference(*first);
        TESSERA_CHECK(
            text.empty(),
            "{}, as in '{}' of other files; tokenize all files with one tokenizer",
            text,
            first_folder.string());
      }
      if (!first) {
        first = made;
        first_folder = folder;
        if (zoo::has_tokenizer(config.model_folder)) {
          const std::string text =
              difference(text::Tokenizer::from_folder(config.model_folder));
          if (!text.empty() && is_log_rank_zero()) {
            log_warning(
                "{}, as in model.folder, '{}': the model reads other words than were written; tokenize the text again with `tessera tokenize --model {}`",
                text,
                config.model_folder.string(),
                config.model_folder.string());
          }
        }
      }
    }
  }
}

/// Says that the trained model will have no tokenizer.
void log_missing_tokenizer(const TrainingConfig& config) {
  if (is_log_rank_zero() && tokenizer_of_tokens(config).empty() &&
      !zoo::has_tokenizer(config.model_folder)) {
    log_info(
        "'{}' does not say which tokenizer made it: model/ of the run gets none, without which `tessera generate` needs --tokenizer; name it in data.tokenizer",
        config.train_files().front().string());
  }
}

enum class DocumentPart { kAll, kTraining, kHeldOut };

std::shared_ptr<const zoo::DocumentStream> stream_of(
    const std::shared_ptr<const zoo::TokenDocuments>& data,
    DocumentPart part,
    const TrainingConfig& config,
    size_t number) {
  const double split = token_options(config).tokens.split;
  std::vector<int64_t> documents;
  for (int64_t i = 0; i < data->size(); ++i) {
    if (part == DocumentPart::kAll ||
        zoo::is_held_out(i, split) == (part == DocumentPart::kHeldOut)) {
      documents.push_back(i);
    }
  }
  TESSERA_CHECK(
      part == DocumentPart::kAll || data->knows_documents(),
      "data.split is {}, but '{}' does not say where its documents end; set data.end_token to the token that ends them, or name another file as data.heldout",
      split,
      data->file().path().string());
  TESSERA_CHECK(
      !documents.empty(),
      "data.split is {}, which leaves no document of the {} of '{}' for {}; set another share, or name another file as data.heldout",
      split,
      data->size(),
      data->file().path().string(),
      part == DocumentPart::kHeldOut ? "the held-out part" : "training");
  return std::make_shared<const zoo::DocumentStream>(
      data, std::move(documents), runtime::split_mix(config.seed) + number);
}

/// Cuts a file as it is, or packs its documents if it says where they are.
/// @param objective null: the next token.
std::unique_ptr<zoo::DataSet> batches_of(
    const TrainingFiles& training,
    DocumentPart part,
    const TrainingConfig& config,
    const std::shared_ptr<const zoo::Objective>& objective,
    c10::Device device) {
  const auto& files = training.files;
  const bool separate = token_options(config).tokens.separate_documents;
  const bool is_packed =
      training.files.size() > 1 || !training.weights.empty() ||
      part != DocumentPart::kAll || files.front()->knows_documents();
  if (!is_packed && !separate && objective == nullptr) {
    check_has_text(files.front()->file(), config.max_length);
    return std::make_unique<zoo::TokenBatches>(
        files.front()->file(), config.max_length, device);
  }
  std::vector<std::shared_ptr<const zoo::DocumentStream>> streams;
  for (const auto& file : files) {
    TESSERA_CHECK(
        !separate || file->knows_documents(),
        "data.separate_documents is true, but '{}' does not say where its documents end; set data.end_token to the token that ends them",
        file->file().path().string());
    streams.push_back(stream_of(file, part, config, streams.size()));
  }
  const auto weights =
      part == DocumentPart::kHeldOut ? std::vector<double>() : training.weights;
  if (objective != nullptr) {
    return std::make_unique<zoo::ObjectiveBatches>(
        objective,
        zoo::PackedSamples(
            std::move(streams),
            weights,
            {objective->text_tokens(), /*shared=*/0, config.seed}));
  }
  return std::make_unique<zoo::PackedBatches>(
      std::move(streams),
      weights,
      zoo::PackedOptions{config.max_length, separate, config.seed},
      device);
}

/// Says what of the held-out data has no score.
void log_left_out(const zoo::DataSet& heldout) {
  const int64_t count = heldout.left_out_tokens();
  if (count > 0 && is_log_rank_zero()) {
    log_info(
        "held-out data: {}; {} {} not scored, as no sequence is full with them: a smaller model.max_length leaves out fewer",
        heldout.text(),
        runtime::count_text(count, "token"),
        count == 1 ? "is" : "are");
  }
}

Task open_tokens(
    const TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    ModelState state) {
  TrainingFiles heldout;
  if (!config.data.heldout.empty()) {
    heldout.files.push_back(opened(config, config.data.heldout_path()));
  }
  const bool trains = state == ModelState::kFirst;
  const bool splits = token_options(config).tokens.split > 0;
  TrainingFiles train;
  if (trains || splits) {
    train = opened_training_files(config);
  }
  Task task;
  task.model = configured_model(config, parallel);
  task.head = task.model->head();
  TESSERA_CHECK(
      task.head != nullptr,
      "language_model: a {} has no head; set a model.architecture that has one, such as GPT2LMHeadModel or BertForMaskedLM",
      task.model->architecture());
  check_tokenizers(config, {&train, &heldout});
  if (trains) {
    log_missing_tokenizer(config);
  }
  zoo::ObjectiveOptions options = token_options(config).tokens.objective;
  if (options.tokenizer.empty() && !zoo::has_tokenizer(config.model_folder)) {
    options.tokenizer = tokenizer_of_tokens(config);
  }
  const zoo::ObjectiveKind kind =
      zoo::objective_of(options, *task.head, task.model->architecture());
  const bool separate = token_options(config).tokens.separate_documents;
  TESSERA_CHECK(
      !separate || kind == zoo::ObjectiveKind::kNextToken,
      "data.separate_documents is true, which the objective \"{}\" does not know; set it to false",
      name_of(kind));
  TESSERA_CHECK(
      !separate || task.model->takes_documents(),
      "data.separate_documents: a {} cannot keep documents apart; set it to false",
      task.model->architecture());
  const int64_t multiple = parallel.batches().sequence_multiple;
  if (config.curriculum) {
    TESSERA_CHECK(
        kind == zoo::ObjectiveKind::kNextToken,
        "training.curriculum cuts sequences, which the objective \"{}\" does not allow: a cut one may have nothing to predict; leave it out",
        name_of(kind));
    TESSERA_CHECK(
        config.curriculum->multiple % multiple == 0,
        "training.curriculum.multiple is {}; to divide sequences over ranks, it must be a multiple of {}",
        config.curriculum->multiple,
        multiple);
  }
  TESSERA_CHECK(
      !trains || config.max_length % multiple == 0,
      "model.max_length is {}; to divide sequences over ranks, it must be a multiple of {}",
      config.max_length,
      multiple);
  std::shared_ptr<const zoo::Objective> objective;
  if (kind != zoo::ObjectiveKind::kNextToken) {
    objective = zoo::make_objective(
        kind,
        options,
        *task.head,
        {config.max_length, multiple, config.seed, config.model_folder});
  }
  if (objective == nullptr) {
    check_positions(*task.model, config.max_length);
  } else {
    const auto limit = task.model->position_limit();
    TESSERA_CHECK(
        !limit || objective->positions() <= *limit,
        "model.max_length is {}, in which texts of the objective \"{}\" have {} positions, but the model has {}; lower it",
        config.max_length,
        name_of(kind),
        objective->positions(),
        limit.value_or(0));
  }
  for (const TrainingFiles* part : {&train, &heldout}) {
    for (const auto& file : part->files) {
      check_has_text(
          file->file(),
          objective == nullptr ? config.max_length : objective->text_tokens());
    }
  }
  for (const TrainingFiles* part : {&train, &heldout}) {
    for (const auto& file : part->files) {
      if (file->format() == zoo::TokenFormat::kPlain) {
        file->file().check_type(task.head->vocab());
      }
      check_tokens(world, file->file(), task.head->vocab());
    }
  }
  if (trains) {
    task.train = batches_of(
        train,
        splits ? DocumentPart::kTraining : DocumentPart::kAll,
        config,
        objective,
        at::kCPU);
  }
  if (splits) {
    task.heldout =
        batches_of(train, DocumentPart::kHeldOut, config, objective, at::kCPU);
  } else if (!heldout.files.empty()) {
    task.heldout =
        batches_of(heldout, DocumentPart::kAll, config, objective, at::kCPU);
  }
  if (task.heldout != nullptr) {
    log_left_out(*task.heldout);
  }
  return task;
}

} // namespace

const TaskKind kLanguageModel{
    .name = "language_model",
    .max_length = 1024,
    .options = options_of<LanguageModelOptions>,
    .visit_model = visit_language_model,
    .visit_data = visit_tokens,
    .finish = finish_tokens,
    .open = open_tokens,
    .prepare = tokenize_data,
    .data_files = token_data_files,
    .tokenizer_of_data = tokenizer_of_tokens,
    .takes_curriculum = true};

} // namespace tessera::tasks
