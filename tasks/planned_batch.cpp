// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/planned_batch.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/tasks/example_batches.h"
#include "tessera/tasks/examples_task.h"
#include "tessera/tasks/image_folder_task.h"
#include "tessera/tasks/kto_batches.h"
#include "tessera/tasks/language_model_task.h"
#include "tessera/tasks/preference_batches.h"
#include "tessera/tasks/preference_task.h"
#include "tessera/tasks/prompt_batches.h"
#include "tessera/tasks/prompt_template.h"
#include "tessera/tasks/prompted_model.h"
#include "tessera/tasks/reward_task.h"
#include "tessera/tasks/supervised_batches.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/zoo/data/objective.h"
#include "tessera/zoo/data/span_objective.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/inputs/example_draws.h"
#include "tessera/zoo/layers/patch_embedding.h"

#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

namespace tessera::tasks {

namespace {

/// A text of so many tokens, learned but for the first.
SupervisedText text_of_ones(int64_t tokens) {
  return {
      .tokens = std::vector<int64_t>(static_cast<size_t>(tokens), 1),
      .answers = {{1, tokens}}};
}

/// A batch of the task reward whose texts are as long as they may be. One of
/// each pair is a token shorter, so that there is padding.
zoo::ModelInput largest_rewarded(const TrainingConfig& config) {
  const PreferenceBatches data(
      {{text_of_ones(config.max_length),
        text_of_ones(config.max_length - 1),
        1.0}},
      {.max_length = config.max_length},
      config.seed,
      PairKind::kTexts);
  return data.make(
      std::vector<size_t>(static_cast<size_t>(config.batch_size), 0),
      /*epoch=*/0,
      /*loss_only=*/true);
}

/// A batch of the task preference whose answers are as long as they may be, and
/// learned but for their first token. One of each pair, or of a batch without
/// pairs, is a token shorter, unless they are packed, so that there is padding.
zoo::ModelInput largest_pairs(
    const TrainingConfig& config,
    const PreferenceTaskOptions& options) {
  const bool packs = options.is_packed();
  const int64_t length = packs ? config.max_length / 2 : config.max_length;
  if (!options.has_pairs()) {
    SupervisedText other = text_of_ones(length - 1);
    other.tokens.front() = 0; // of another prompt
    const KtoBatches data(
        {{text_of_ones(length), true}, {std::move(other), false}},
        {.max_length = config.max_length},
        options.preference);
    std::vector<size_t> rows(static_cast<size_t>(config.batch_size), 0);
    rows.back() = rows.size() > 1 ? 1 : 0;
    return data.make(rows, /*epoch=*/0, /*loss_only=*/true);
  }
  const PreferenceBatches data(
      {{text_of_ones(length), text_of_ones(packs ? length : length - 1)}},
      {.is_packed = packs, .max_length = config.max_length},
      config.seed);
  return data.make(
      std::vector<size_t>(static_cast<size_t>(config.batch_size), 0),
      /*epoch=*/0,
      /*loss_only=*/true);
}

/// What the longest words of a label have at most: as many as they have bytes,
/// and an end.
int64_t most_words(const TrainingConfig& config) {
  constexpr int64_t kOfUnknown = 8;
  if (labels_are_in_data(config)) {
    return kOfUnknown;
  }
  size_t longest = 0;
  for (const std::string& words : verbalizers_of(
           prompted_labels(config, std::nullopt),
           config.as<TextClassificationOptions>().verbalizers)) {
    longest = std::max(longest, words.size());
  }
  return static_cast<int64_t>(longest) + 1;
}

/// A batch of prompts that are as long as they may be, with the words of their
/// labels, of which one has padding.
zoo::ModelInput largest_prompts(
    const TrainingConfig& config,
    const zoo::Model& model) {
  const PromptKind kind = prompt_kind_of(model);
  const auto ones = [](int64_t count) {
    return std::vector<int64_t>(static_cast<size_t>(count), 1);
  };
  const PromptedLabel label{
      .input = ones(config.max_length),
      .words = ones(std::min(most_words(config), config.max_length - 1))};
  zoo::ModelInput batch = prompted_input(
      {static_cast<size_t>(config.batch_size), &label}, kind, {});
  if (batch.attention_mask.defined()) {
    batch.attention_mask[0][config.max_length - 1] = 0;
  }
  batch.loss_only = true;
  return batch;
}

/// A batch of `examples`, of the shapes that data.train has; without padding
/// that is removed, as a batch with the longest text.
zoo::ModelInput first_examples(
    const TrainingConfig& config,
    zoo::Model& model) {
  const auto head = head_of(model);
  zoo::ExampleOptions options = config.as<ExampleTaskOptions>().examples;
  options.trim_padding = false;
  const ExampleBatches data(
      zoo::ExampleFiles(config.data.train_path()),
      *head,
      model.architecture(),
      options,
      /*measures_metric=*/false,
      at::kCPU);
  std::vector<size_t> rows(static_cast<size_t>(config.batch_size));
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = i % data.size();
  }
  return data.make(rows, /*epoch=*/0, /*loss_only=*/true);
}

/// The length of texts in data.train where it is not there: all positions.
int64_t most_positions(
    const TrainingConfig& config,
    const nlohmann::json& model) {
  for (const char* key : {"max_position_embeddings", "n_positions"}) {
    const auto found = model.find(key);
    if (found != model.end() && found->is_number_integer()) {
      return found->get<int64_t>();
    }
  }
  TESSERA_FAIL(
      "plan: data.train '{}', which says how long texts are, is not there, and config.json of the model has no number of positions; make the file, or set the key max_position_embeddings in config.json",
      config.data.train_path().string());
}

/// Labels of a batch of texts or images.
at::Tensor labels_for(const zoo::Head& head, int64_t rows, int64_t length) {
  switch (head.labels()) {
    case zoo::HeadLabels::kNextTokens:
    case zoo::HeadLabels::kTokens:
      return torch::zeros({rows, length}, torch::kLong);
    case zoo::HeadLabels::kClass:
      return torch::zeros({rows}, torch::kLong);
    case zoo::HeadLabels::kClasses:
      return torch::zeros({rows, head.classes()});
    case zoo::HeadLabels::kNumbers:
      return torch::zeros({rows});
    case zoo::HeadLabels::kOther:
      break;
  }
  return {};
}

/// Texts of a file of tokens: the inputs and labels of their objective.
zoo::ModelInput largest_texts(
    const TrainingConfig& config,
    const LanguageModelOptions& options,
    zoo::Model& model) {
  const auto head = head_of(model);
  const int64_t rows = config.batch_size;
  const int64_t length = config.max_length;
  const auto filled = [&](int64_t columns) {
    return torch::ones({rows, columns}, torch::kLong);
  };
  zoo::ModelInput batch;
  batch.loss_only = true;
  batch.input_ids = filled(length);
  const zoo::ObjectiveOptions& objective = options.tokens.objective;
  switch (zoo::objective_of(objective, *head, model.architecture())) {
    case zoo::ObjectiveKind::kNextToken:
      batch.labels = batch.input_ids;
      if (options.tokens.separate_documents) {
        batch.labels = filled(length);
        batch.position_ids = torch::arange(length).repeat({rows, 1});
        batch.others["document_ids"] = filled(length);
      }
      break;
    case zoo::ObjectiveKind::kMasked:
      batch.labels = filled(length);
      if (head->predicts_pairs()) {
        batch.others["next_sentence_label"] = torch::zeros({rows}, at::kLong);
        if (head->token_types() > 1) {
          batch.token_type_ids = torch::zeros({rows, length}, at::kLong);
        }
      }
      break;
    case zoo::ObjectiveKind::kSpanCorruption: {
      const int64_t multiple = sequence_multiple(config.parallel);
      const int64_t targets =
          zoo::SpanLengths::of(length, objective.spans).targets;
      batch.labels = filled(runtime::round_up(targets, multiple));
      break;
    }
    case zoo::ObjectiveKind::kBlankFilling:
      batch.labels = filled(length);
      // Those of blanks are their places.
      batch.position_ids = torch::zeros({rows, 2, length}, torch::kLong);
      batch.others["sep"] = torch::full({rows}, length / 2, torch::kLong);
      break;
    case zoo::ObjectiveKind::kPrefix:
      batch.labels = filled(length);
      batch.attention_mask = filled(length);
      batch.attention_mask.slice(1, length / 2).zero_();
      break;
  }
  return batch;
}

/// Rows of the task supervised, packed or with padding, of which all is
/// learned.
zoo::ModelInput largest_rows(const TrainingConfig& config, zoo::Model& model) {
  const int64_t length = config.max_length;
  zoo::ModelInput batch = largest_batch(
      model,
      config.batch_size,
      length,
      /*masks=*/!packs_rows(config, model));
  batch.labels = torch::zeros_like(batch.input_ids);
  if (packs_rows(config, model)) {
    batch.position_ids = torch::arange(length).repeat({config.batch_size, 1});
    batch.others["document_ids"] = torch::zeros_like(batch.input_ids);
  }
  return batch;
}

/// Texts with padding, as padded_input() makes them.
zoo::ModelInput largest_padded(
    const TrainingConfig& config,
    zoo::Model& model) {
  zoo::ModelInput batch = largest_batch(
      model, config.batch_size, config.max_length, /*masks=*/true);
  if (head_of(model)->token_types() > 1) {
    batch.token_type_ids = torch::zeros_like(batch.input_ids);
  }
  return batch;
}

/// Images, with what their head draws for each and mixed labels.
zoo::ModelInput largest_images(
    const TrainingConfig& config,
    zoo::Model& model) {
  const auto head = head_of(model);
  zoo::ModelInput images =
      largest_batch(model, config.batch_size, /*length=*/0, /*masks=*/false);
  const auto* folder = config.get_if<ImageTaskOptions>();
  if (folder != nullptr && folder->images.mixup > 0 &&
      head->labels() == zoo::HeadLabels::kClass) {
    images.labels = torch::zeros({config.batch_size, head->classes()});
  }
  zoo::NamedTensors batch = images.named();
  std::vector<size_t> rows(static_cast<size_t>(config.batch_size));
  std::iota(rows.begin(), rows.end(), 0);
  const zoo::ExampleOptions& examples =
      folder != nullptr ? folder->examples
                        : config.as<ExampleTaskOptions>().examples;
  head->draw(batch, examples, [&](int64_t each) {
    return zoo::draws_of(rows, /*epoch=*/0, config.seed, each);
  });
  zoo::ModelInput drawn = zoo::ModelInput::from_named(batch);
  drawn.loss_only = true;
  return drawn;
}

/// What zoo::prepared_pixels() makes `numel` pixels from: those that are read,
/// unless these are what a model takes.
int64_t bytes_to_prepare(
    int64_t numel,
    c10::ScalarType read,
    const zoo::PixelOptions& options) {
  const bool are_taken = read == at::kFloat && options.mean.empty() &&
                         options.std.empty() && options.scale.value_or(1) == 1;
  return are_taken ? 0 : numel * static_cast<int64_t>(c10::elementSize(read));
}

/// PlannedBatch::making_bytes of a batch of images.
int64_t making_bytes_of(
    const TrainingConfig& config,
    const zoo::Head& head,
    const zoo::ModelInput& batch) {
  if (head.images() == nullptr) {
    return 0;
  }
  int64_t bytes = 0;
  for (const auto& [name, tensor] : batch.named()) {
    if (head.kind_of(name) != zoo::InputKind::kPixels) {
      continue;
    }
    const int64_t numel = tensor.numel();
    if (const auto* folder = config.get_if<ImageTaskOptions>()) {
      bytes += numel; // files have bytes
      if (folder->images.mixup > 0) {
        // The others', or those that both are before prepared_pixels().
        bytes += numel * static_cast<int64_t>(sizeof(float));
      }
      continue;
    }
    c10::ScalarType read = at::kByte;
    if (std::filesystem::exists(config.data.train_path())) {
      const zoo::ExampleFiles files(config.data.train_path());
      if (const auto* column = files.find(name)) {
        read = files.read(*column, {}).scalar_type();
      }
    }
    bytes += bytes_to_prepare(
        numel, read, config.as<ExampleTaskOptions>().examples.pixels);
  }
  return bytes;
}

} // namespace

zoo::ModelInput largest_batch(
    zoo::Model& model,
    int64_t rows,
    int64_t length,
    bool masks) {
  const auto head = head_of(model);
  zoo::ModelInput batch;
  batch.loss_only = true;
  if (const zoo::PatchEmbeddingOptions* images = head->images()) {
    batch.pixel_values = torch::zeros(
        {rows, images->channels, images->image.height, images->image.width});
    if (head->takes_two_views()) {
      batch.others["second_pixel_values"] = batch.pixel_values.clone();
    }
  } else {
    batch.input_ids = torch::ones({rows, length}, torch::kLong);
    if (masks) {
      batch.attention_mask = torch::ones({rows, length}, torch::kLong);
      // As in a batch of texts of different lengths.
      batch.attention_mask[0][length - 1] = 0;
    }
  }
  batch.labels = labels_for(*head, rows, length);
  if (head->finds_answers()) {
    for (const char* key : {"start_positions", "end_positions"}) {
      batch.others[key] = torch::zeros({rows}, torch::kLong);
    }
  }
  return batch;
}

namespace {

/// planned_batch() without PlannedBatch::making_bytes.
PlannedBatch batch_of_task(
    const TrainingConfig& config,
    zoo::Model& model,
    const nlohmann::json& source) {
  if (const auto* pairs = config.get_if<PreferenceTaskOptions>()) {
    return {largest_pairs(config, *pairs), {}};
  }
  if (config.get_if<RewardTaskOptions>() != nullptr) {
    return {largest_rewarded(config), {}};
  }
  if (const auto* texts = config.get_if<TextClassificationOptions>();
      texts != nullptr && !texts->columns.prompt.empty()) {
    return {largest_prompts(config, model), {}};
  }
  if (const auto* texts = config.get_if<LanguageModelOptions>()) {
    return {largest_texts(config, *texts, model), {}};
  }
  if (config.get_if<SupervisedOptions>() != nullptr) {
    return {largest_rows(config, model), {}};
  }
  const bool has_examples = config.get_if<ExampleTaskOptions>() != nullptr;
  if (has_examples && std::filesystem::exists(config.data.train_path())) {
    return {first_examples(config, model), {}};
  }
  if (head_of(model)->images() != nullptr) {
    return {largest_images(config, model), {}};
  }
  if (!has_examples) {
    return {largest_padded(config, model), {}};
  }
  const int64_t length = most_positions(config, source);
  return {
      largest_batch(model, config.batch_size, length, /*masks=*/true),
      {formatted(
          "examples: texts of {} tokens, as many as the model has positions, and labels of all of them, because '{}' is not there",
          length,
          config.data.train_path().string())}};
}

} // namespace

PlannedBatch planned_batch(
    const TrainingConfig& config,
    zoo::Model& model,
    const nlohmann::json& source) {
  PlannedBatch batch = batch_of_task(config, model, source);
  batch.making_bytes = making_bytes_of(config, *head_of(model), batch.input);
  return batch;
}

bool has_equal_labels(const TrainingConfig& config, zoo::Model& model) {
  if (const auto* pairs = config.get_if<PreferenceTaskOptions>()) {
    return !pairs->is_packed();
  }
  const auto head = head_of(model);
  if (const auto* texts = config.get_if<LanguageModelOptions>()) {
    return zoo::objective_of(
               texts->tokens.objective, *head, model.architecture()) ==
               zoo::ObjectiveKind::kNextToken &&
           !texts->tokens.separate_documents;
  }
  const auto* examples = config.get_if<ExampleTaskOptions>();
  if (examples != nullptr &&
      std::filesystem::exists(config.data.train_path())) {
    return ExampleBatches(
               zoo::ExampleFiles(config.data.train_path()),
               *head,
               model.architecture(),
               examples->examples,
               /*measures_metric=*/false,
               at::kCPU)
        .has_equal_labels();
  }
  return head->labels() != zoo::HeadLabels::kTokens &&
         head->labels() != zoo::HeadLabels::kNextTokens;
}

int64_t bytes_of(const zoo::ModelInput& batch) {
  std::vector<at::Tensor> tensors;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : batch.named()) {
    const bool is_known = std::any_of(
        tensors.begin(), tensors.end(), [&](const at::Tensor& other) {
          return other.is_alias_of(tensor);
        });
    bytes += is_known ? 0 : static_cast<int64_t>(tensor.storage().nbytes());
    tensors.push_back(tensor);
  }
  return bytes;
}

} // namespace tessera::tasks
