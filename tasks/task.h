// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Task` is what `tessera train` trains: a model with its head, and data that
// fit it. `TaskKind` is one value of the configuration key `task`.

#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/tasks/batch_loss.h"
#include "tessera/tasks/frozen_model.h"
#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/layer_context.h"

#include <any>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

class ConfigReader;
class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

struct WantedHead;

} // namespace tessera::zoo

namespace tessera::tasks {

struct TrainingConfig;

/// The weights that a model is constructed for.
enum class ModelState {
  kFirst, ///< about to be trained
  kTrained, ///< trained by the task; there is no training data
  kAdapted, ///< as kFirst; a trained adapter is loaded into it
};

struct Task {
  std::shared_ptr<zoo::Model> model; ///< without memory until it is wrapped
  std::unique_ptr<zoo::Head> head; ///< of the model
  std::unique_ptr<zoo::DataSet> train; ///< null if the model is trained
  std::unique_ptr<zoo::DataSet> heldout; ///< null: nothing is scored
  /// Of loss_of_run(); null: the model's own.
  std::unique_ptr<BatchLoss> loss;
};

/// A format of data and the keys that describe it.
struct TaskKind {
  const char* name; ///< "text_classification"
  int64_t max_length; ///< default of TrainingConfig::max_length
  /// Its own options by default: what TrainingConfig::as() has.
  std::any (*options)();
  /// Fields of its own in the sections `model` and `data`.
  void (*visit_model)(runtime::OptionFields& fields, TrainingConfig& config);
  void (*visit_data)(runtime::OptionFields& fields, TrainingConfig& config);
  /// Checks what holds between fields, and completes them.
  /// @throws tessera::Error naming file, path, value and what was expected.
  void (*finish)(const runtime::ConfigReader& reader, TrainingConfig& config);
  /// Constructs the model and opens the data, which it checks. Collective.
  Task (*open)(
      const TrainingConfig& config,
      World& world,
      ParallelRun& parallel,
      ModelState state);
  /// The model that training starts from, without memory, with the head that it
  /// trains. Null: there are no predictions, see trained_model().
  std::shared_ptr<zoo::Model> (*base_model)(
      const TrainingConfig& config,
      const zoo::LayerContext& context) = nullptr;
  /// Adds to the folder of a trained model what else says how its inputs are
  /// made. On one rank. Null: there is nothing.
  void (*finish_export)(
      const TrainingConfig& config,
      zoo::Model& model,
      const std::filesystem::path& folder) = nullptr;
  /// Makes the files that open() reads, where the configuration names others,
  /// and names them in it. Collective. Null: there is nothing to make.
  void (*prepare)(TrainingConfig& config, World& world, ModelState state) =
      nullptr;
  /// Sections of its own; null: there are none.
  void (*visit_sections)(
      runtime::OptionFields& fields,
      TrainingConfig& config) = nullptr;
  /// What it trains for instead of the model's own loss, before the model is
  /// wrapped; `make` constructs other models that it needs. Collective. Null:
  /// the model's own.
  std::unique_ptr<BatchLoss> (*make_loss)(
      TrainingConfig& config,
      World& world,
      ParallelRun& parallel,
      const Task& task,
      const MakeFrozenModel& make) = nullptr;
  /// What it needs of the head of a model. Null: any is trained.
  zoo::WantedHead (*wanted_head)(const TrainingConfig& config) = nullptr;
  /// All files of `names`, which are `data.train` or `data.heldout`. Null:
  /// files of rows, see matching_files().
  /// @throws tessera::Error on names without files.
  std::vector<std::filesystem::path> (*data_files)(
      const TrainingConfig& config,
      const std::vector<std::string>& names) = nullptr;
  /// The tokenizer that made the data; empty: it is not known. Null: they are
  /// no tokens.
  std::filesystem::path (*tokenizer_of_data)(const TrainingConfig& config) =
      nullptr;
  /// Whether `training.curriculum` may shorten its sequences.
  bool takes_curriculum = false;
};

/// TaskKind::options for a struct.
template <typename Options>
std::any options_of() {
  return Options();
}

/// Labeled texts in JSON lines.
extern const TaskKind kTextClassification;
/// Questions with the texts that have their answers.
extern const TaskKind kQuestionAnswering;
/// A file of tokens.
extern const TaskKind kLanguageModel;
/// Conversations, or prompts and completions.
extern const TaskKind kSupervised;
/// Prompts with a better and a worse answer.
extern const TaskKind kPreference;
/// Texts with a score, of which the better of two has the higher one.
extern const TaskKind kReward;
/// Inputs of any model in safetensors files.
extern const TaskKind kExamples;
/// A folder of images with a subfolder per class.
extern const TaskKind kImageFolder;

/// Calls TaskKind::prepare of a configuration, if there is one.
void prepare_data(TrainingConfig& config, World& world, ModelState state);

/// All kinds, by name.
const std::vector<std::pair<std::string, const TaskKind*>>& task_kinds();

/// The head of a model. @throws tessera::Error on a base model, which has none.
std::unique_ptr<zoo::Head> head_of(zoo::Model& model);

/// @throws tessera::Error naming model.max_length if it is above
///     Model::position_limit().
void check_positions(const zoo::Model& model, int64_t max_length);

} // namespace tessera::tasks
