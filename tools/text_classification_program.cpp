// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/position_limit.h"
#include "tessera/zoo/tasks/text_classification_task.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <array>
#include <cstdio>
#include <utility>

namespace tessera::tools {

namespace {

std::string texts_text(size_t count) {
  return runtime::count_text(static_cast<int64_t>(count), "text");
}

class TextClassificationProgram : public TaskProgram {
 public:
  explicit TextClassificationProgram(zoo::FinetuneConfig config)
      : config_(std::move(config)) {}

  zoo::TrainingConfig& config() override {
    return config_;
  }

  std::shared_ptr<zoo::Model> make_model(
      World& world,
      ParallelRun& parallel,
      ModelState state) override {
    tokenizer_.emplace(zoo::BertTokenizer::from_folder(config_.model_folder));
    std::optional<zoo::LabelledTexts> train, heldout;
    if (state != ModelState::kTrained) {
      train = labelled_texts(config_.train_file, /*is_heldout=*/false);
    }
    if (!config_.heldout_file.empty()) {
      heldout = labelled_texts(config_.heldout_file, /*is_heldout=*/true);
    }
    const auto model = model_for(train, zoo::layer_context(parallel));
    zoo::check_positions(*model, config_.max_length);
    if (!config_.is_regression()) {
      labels_ = zoo::classes_of(*model);
    }
    if (train) {
      train_ = encoded(world, *train);
    }
    if (heldout) {
      heldout_ = encoded(world, *heldout);
    }
    return model;
  }

  std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      Engine& /*engine*/,
      ParallelRun& /*parallel*/,
      const zoo::ModelTask::Options& options) override {
    return std::make_unique<zoo::TextClassificationTask>(
        model, *tokenizer_, train_, options);
  }

  std::string data_text() const override {
    return config_.is_regression()
               ? formatted("{} with numbers", texts_text(train_.size()))
               : formatted(
                     "{} with {}",
                     texts_text(train_.size()),
                     runtime::count_text(
                         static_cast<int64_t>(labels_.size()), "label"));
  }

  std::optional<TaskScore> score(
      ParallelRun& parallel,
      Engine& engine,
      zoo::Model& model) override {
    if (heldout_.empty()) {
      return std::nullopt;
    }
    if (config_.is_regression()) {
      return regression_score(parallel, engine, model);
    }
    const zoo::ClassificationScore score = zoo::evaluate_text_classification(
        parallel, engine, model, *tokenizer_, heldout_, config_.batch_size);
    const double majority = zoo::majority_share(heldout_);
    std::array<char, 200> text{};
    std::snprintf(
        text.data(),
        text.size(),
        "accuracy %.1f %% of %s, loss %.4f "
        "(always guessing the most frequent label: %.1f %%)",
        100 * score.accuracy,
        texts_text(score.examples).c_str(),
        score.loss,
        100 * majority);
    return TaskScore{
        text.data(),
        {{"heldout_accuracy", score.accuracy},
         {"heldout_loss", score.loss},
         {"heldout_examples", score.examples},
         {"majority_baseline", majority}}};
  }

 private:
  TaskScore regression_score(
      ParallelRun& parallel,
      Engine& engine,
      zoo::Model& model) const {
    const zoo::RegressionScore score = zoo::evaluate_text_regression(
        parallel, engine, model, *tokenizer_, heldout_, config_.batch_size);
    std::array<char, 200> text{};
    std::snprintf(
        text.data(),
        text.size(),
        "mean squared error %.4f over %s, Pearson correlation %.4f",
        score.squared_error,
        texts_text(score.examples).c_str(),
        score.pearson);
    return {
        text.data(),
        {{"heldout_loss", score.squared_error},
         {"heldout_pearson", score.pearson},
         {"heldout_examples", score.examples}}};
  }

  zoo::LabelledTexts labelled_texts(
      const std::filesystem::path& file,
      bool is_heldout) const {
    auto texts = zoo::read_labelled_texts(
        file, config_.columns, config_.is_regression());
    if (is_log_rank_zero()) {
      zoo::warn_about_labels(texts, is_heldout);
    }
    return texts;
  }

  /// @param train nullopt: the folder has the trained model.
  std::shared_ptr<zoo::Model> model_for(
      const std::optional<zoo::LabelledTexts>& train,
      const zoo::LayerContext& context) const {
    if (train) {
      return config_.is_regression()
                 ? zoo::lazy_text_regressor(
                       config_.model_folder, context, config_.strict)
                 : zoo::lazy_text_classifier(
                       config_.model_folder,
                       zoo::labels_of(*train),
                       context,
                       config_.strict);
    }
    const auto model = zoo::lazy_text_classifier(
        config_.model_folder, {}, context, config_.strict);
    TESSERA_CHECK(
        zoo::predicts_numbers(*model) == config_.is_regression(),
        "model.problem_type is \"{}\", but the model in '{}' predicts {}",
        config_.problem_type,
        config_.model_folder.string(),
        config_.is_regression() ? "classes" : "numbers");
    return model;
  }

  std::vector<zoo::LabelledEncoding> encoded(
      const World& world,
      const zoo::LabelledTexts& texts) const {
    auto examples = zoo::encode_labelled_texts(
        texts, labels_, *tokenizer_, config_.max_length);
    if (const auto count = zoo::truncated_count(examples);
        count > 0 && world.rank() == 0) {
      log_info(
          "'{}': {} of {} texts are longer than model.max_length, {} tokens, and are truncated",
          texts.path.string(),
          count,
          examples.size(),
          config_.max_length);
    }
    return examples;
  }

  zoo::FinetuneConfig config_;
  std::optional<zoo::BertTokenizer> tokenizer_;
  std::vector<std::string> labels_;
  std::vector<zoo::LabelledEncoding> train_, heldout_;
};

} // namespace

std::unique_ptr<TaskProgram> text_classification_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  return std::make_unique<TextClassificationProgram>(
      zoo::read_finetune_config(file, overrides, resolved));
}

} // namespace tessera::tools
