// SPDX-License-Identifier: Apache-2.0
#pragma once
// A task of `tessera train` and `tessera eval`: its data, its model and its
// score. What all of them do is in training_run.h.

#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/tasks/model_task.h"
#include "tessera/zoo/tasks/training_config.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

struct TaskScore {
  std::string text; ///< "accuracy 91.7 % of 24 texts, ..."
  nlohmann::ordered_json values; ///< by their names in result.json
};

/// What a task's model is.
enum class ModelState {
  kFirst, ///< to be trained
  kTrained, ///< what the task has trained; there is no data to train on
  kAdapted, ///< the same as a first model that an adapter is loaded into
};

class TaskProgram {
 public:
  virtual ~TaskProgram() = default;

  virtual zoo::TrainingConfig& config() = 0;

  /// The model, without memory until it is wrapped, and the data that fits it.
  virtual std::shared_ptr<zoo::Model> make_model(
      const World& world,
      ParallelRun& parallel,
      ModelState state) = 0;

  /// @param engine that has wrapped the model.
  virtual std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      EngineRef engine,
      ParallelRun& parallel,
      const zoo::ModelTask::Options& options) = 0;

  /// "1024 tokens in texts of 16", of what is trained on.
  virtual std::string data_text() const = 0;

  /// Of the held-out data; nothing where there is none. Collective.
  virtual std::optional<TaskScore> score(
      ParallelRun& parallel,
      EngineRef engine,
      zoo::Model& model) = 0;
};

/// The task that a configuration is for.
/// @param resolved receives the whole configuration, defaults included.
/// @throws tessera::Error naming file, path, value and what was expected.
std::unique_ptr<TaskProgram> make_task_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

/// One function for each task; see make_task_program().
std::unique_ptr<TaskProgram> text_classification_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);
std::unique_ptr<TaskProgram> language_model_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);
std::unique_ptr<TaskProgram> examples_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

} // namespace tessera::tools
