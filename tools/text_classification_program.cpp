// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/text_classification_task.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <array>
#include <cstdio>
#include <utility>

namespace tessera::tools {

namespace {

class TextClassificationProgram : public TaskProgram {
 public:
  explicit TextClassificationProgram(zoo::FinetuneConfig config)
      : config_(std::move(config)) {}

  zoo::TrainingConfig& config() override {
    return config_;
  }

  std::shared_ptr<zoo::Model> make_model(
      const World& /*world*/,
      ParallelRun& parallel,
      ModelState state) override {
    tokenizer_.emplace(zoo::BertTokenizer::from_folder(config_.model_folder));
    std::vector<zoo::LabelledText> train;
    std::vector<std::string> labels; // a trained model has its own
    if (state != ModelState::kTrained) {
      train = zoo::read_labelled_texts(config_.train_file, config_.columns);
      labels = zoo::labels_of(train);
    }
    const auto model = zoo::lazy_text_classifier(
        config_.model_folder,
        labels,
        zoo::layer_context(parallel),
        config_.strict);
    labels_ = zoo::classes_of(*model);
    train_ = encoded(train);
    heldout_ = encoded(
        zoo::read_labelled_texts(config_.heldout_file, config_.columns));
    return model;
  }

  std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      EngineRef /*engine*/,
      ParallelRun& /*parallel*/,
      const zoo::ModelTask::Options& options) override {
    return std::make_unique<zoo::TextClassificationTask>(
        model, *tokenizer_, train_, options);
  }

  std::string data_text() const override {
    return formatted("{} texts with {} labels", train_.size(), labels_.size());
  }

  std::optional<TaskScore> score(
      ParallelRun& parallel,
      EngineRef engine,
      zoo::Model& model) override {
    const zoo::ClassificationScore score = zoo::evaluate_text_classification(
        parallel, engine, model, *tokenizer_, heldout_, config_.batch_size);
    const double majority = zoo::majority_share(heldout_);
    std::array<char, 200> text{};
    std::snprintf(
        text.data(),
        text.size(),
        "accuracy %.1f %% of %lld texts, loss %.4f "
        "(always guessing the most frequent label: %.1f %%)",
        100 * score.accuracy,
        static_cast<long long>(score.examples),
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
  std::vector<zoo::LabelledEncoding> encoded(
      const std::vector<zoo::LabelledText>& texts) const {
    return zoo::encode_labelled_texts(
        texts, labels_, *tokenizer_, config_.max_length);
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
