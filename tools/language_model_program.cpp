// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/configured_model.h"
#include "tessera/zoo/tasks/language_model_config.h"
#include "tessera/zoo/tasks/language_model_task.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace tessera::tools {

namespace {

class LanguageModelProgram : public TaskProgram {
 public:
  explicit LanguageModelProgram(zoo::LanguageModelConfig config)
      : config_(std::move(config)) {
    if (!config_.heldout_file.empty()) {
      heldout_.emplace(config_.heldout_file, config_.token_type);
      zoo::check_has_text(*heldout_, config_.max_length);
    }
  }

  zoo::TrainingConfig& config() override {
    return config_;
  }

  std::shared_ptr<zoo::Model> make_model(
      World& world,
      ParallelRun& parallel,
      ModelState state) override {
    if (state == ModelState::kFirst) {
      train_.emplace(config_.train_file, config_.token_type);
    }
    const auto model = zoo::configured_model(config_, parallel);
    zoo::check_language_model(*model, config_.max_length);
    if (train_) {
      zoo::check_has_text(*train_, config_.max_length);
    }
    for (const auto* const tokens : {&train_, &heldout_}) {
      if (tokens->has_value()) {
        zoo::check_tokens(world, **tokens, *model);
      }
    }
    return model;
  }

  std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      Engine& /*engine*/,
      ParallelRun& /*parallel*/,
      const zoo::ModelTask::Options& options) override {
    return std::make_unique<zoo::LanguageModelTask>(
        model, *train_, config_.max_length, options);
  }

  std::string data_text() const override {
    return formatted(
        "{} tokens in sequences of {}", train_->size(), config_.max_length);
  }

  std::optional<TaskScore> score(
      ParallelRun& parallel,
      Engine& engine,
      zoo::Model& model) override {
    if (!heldout_) {
      return std::nullopt;
    }
    const zoo::LanguageModelScore score = zoo::evaluate_language_model(
        parallel,
        engine,
        model,
        *heldout_,
        config_.max_length,
        config_.batch_size);
    std::array<char, 200> text{};
    std::snprintf(
        text.data(),
        text.size(),
        "loss %.4f over %lld tokens (perplexity %.2f)",
        score.loss,
        static_cast<long long>(score.tokens),
        std::exp(score.loss));
    return TaskScore{
        text.data(),
        {{"heldout_loss", score.loss}, {"heldout_tokens", score.tokens}}};
  }

 private:
  zoo::LanguageModelConfig config_;
  std::optional<zoo::TokenFile> train_, heldout_;
};

} // namespace

std::unique_ptr<TaskProgram> language_model_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  return std::make_unique<LanguageModelProgram>(
      zoo::read_language_model_config(file, overrides, resolved));
}

} // namespace tessera::tools
