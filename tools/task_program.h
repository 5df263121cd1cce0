// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TaskProgram` is a task of `tessera train` and `tessera eval`: its data,
// model and score. The part that all tasks share is in training_run.h.

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
  nlohmann::ordered_json values; ///< by name in result.json
};

/// The weights that a task's model is constructed for.
enum class ModelState {
  kFirst, ///< about to be trained
  kTrained, ///< trained by the task; there is no training data
  kAdapted, ///< as kFirst; a trained adapter is loaded into it
};

class TaskProgram {
 public:
  virtual ~TaskProgram() = default;

  virtual zoo::TrainingConfig& config() = 0;

  /// Constructs the model, without memory until it is wrapped, and loads the
  /// matching data, which it checks. Collective.
  virtual std::shared_ptr<zoo::Model> make_model(
      World& world,
      ParallelRun& parallel,
      ModelState state) = 0;

  /// @param engine which has wrapped the model.
  virtual std::unique_ptr<zoo::ModelTask> make_task(
      const std::shared_ptr<zoo::Model>& model,
      Engine& engine,
      ParallelRun& parallel,
      const zoo::ModelTask::Options& options) = 0;

  /// Describes the training data: "1024 tokens in texts of 16".
  virtual std::string data_text() const = 0;

  /// Scores the held-out data; nullopt if there is none. Collective.
  virtual std::optional<TaskScore> score(
      ParallelRun& parallel,
      Engine& engine,
      zoo::Model& model) = 0;
};

/// The task that a configuration names.
/// @param resolved receives the whole configuration, defaults included.
/// @throws tessera::Error naming file, path, value and what was expected.
std::unique_ptr<TaskProgram> make_task_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved);

/// One function per task; see make_task_program().
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
