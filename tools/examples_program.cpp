// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/configured_model.h"
#include "tessera/zoo/tasks/examples_config.h"
#include "tessera/zoo/tasks/examples_task.h"

#include <array>
#include <cstdio>
#include <utility>

namespace tessera::tools {

namespace {

/// A file's examples as batches of a model.
struct Examples {
  Examples(
      const std::filesystem::path& path,
      const zoo::TrainedHead& head,
      const zoo::ExampleOptions& options,
      c10::Device device)
      : files(path), batches(files, head, options, device) {}

  zoo::ExampleFiles files;
  zoo::ExampleBatches batches;
};

/// Adds the accuracy to the text, "accuracy 91.7 % of 24 examples, ", and to
/// the values of result.json.
void add_accuracy(const zoo::ExamplesScore& score, TaskScore& result) {
  const char* what = "accuracy";
  const char* items = "examples";
  switch (score.item) {
    case zoo::ScoredItem::kNothing:
      return;
    case zoo::ScoredItem::kExamples:
      break;
    case zoo::ScoredItem::kTokens:
      items = "tokens";
      break;
    case zoo::ScoredItem::kAnswers:
      what = "exact match";
      items = "answers";
  }
  std::array<char, 100> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "%s %.1f %% of %lld %s, ",
      what,
      100 * score.accuracy,
      static_cast<long long>(score.items),
      items);
  result.text += text.data();
  const bool is_answer = score.item == zoo::ScoredItem::kAnswers;
  result.values[is_answer ? "heldout_exact_match" : "heldout_accuracy"] =
      score.accuracy;
  if (score.item != zoo::ScoredItem::kExamples) {
    result.values[std::string("heldout_") + items] = score.items;
  }
}

std::string loss_text(const zoo::ExamplesScore& score) {
  std::array<char, 100> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "loss %.4f over %lld examples",
      score.loss,
      static_cast<long long>(score.examples));
  return text.data();
}

class ExamplesProgram : public TaskProgram {
 public:
  explicit ExamplesProgram(zoo::ExamplesConfig config)
      : config_(std::move(config)) {}

  zoo::TrainingConfig& config() override {
    return config_;
  }

  std::shared_ptr<zoo::Model> make_model(
      World& world,
      ParallelRun& parallel,
      ModelState state) override {
    auto model = zoo::configured_model(config_, parallel);
    const zoo::TrainedHead head = zoo::trained_head(*model);
    zoo::ExampleOptions options = config_.examples;
    options.sequence_multiple = parallel.batches().sequence_multiple;
    if (state == ModelState::kFirst) {
      train_.emplace(config_.train_file, head, options, world.device());
    }
    if (!config_.heldout_file.empty()) {
      heldout_.emplace(config_.heldout_file, head, options, world.device());
    }
    return model;
  }

  std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      Engine& engine,
      ParallelRun& parallel,
      const zoo::ModelTask::Options& options) override {
    return std::make_unique<zoo::ExamplesTask>(
        model,
        train_->files.size(),
        train_->batches,
        engine,
        parallel,
        options);
  }

  std::string data_text() const override {
    return formatted(
        "{} examples of {}", train_->files.size(), train_->files.names());
  }

  std::optional<TaskScore> score(
      ParallelRun& parallel,
      Engine& engine,
      zoo::Model& model) override {
    if (!heldout_) {
      return std::nullopt;
    }
    const zoo::ExamplesScore score = zoo::evaluate_examples(
        parallel,
        engine,
        model,
        heldout_->files.size(),
        heldout_->batches,
        config_.batch_size,
        config_.accuracy);
    TaskScore result;
    add_accuracy(score, result);
    result.text += loss_text(score);
    result.values["heldout_loss"] = score.loss;
    result.values["heldout_examples"] = score.examples;
    return result;
  }

 private:
  zoo::ExamplesConfig config_;
  std::optional<Examples> train_, heldout_;
};

} // namespace

std::unique_ptr<TaskProgram> examples_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  return std::make_unique<ExamplesProgram>(
      zoo::read_examples_config(file, overrides, resolved));
}

} // namespace tessera::tools
