// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FrozenModel` is a model that is run beside the one that is trained, such as
// a teacher: sharded over all ranks, without gradients and optimizer state.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/models/registry.h"

#include <ATen/core/ScalarType.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::tasks {

struct TrainingConfig;

struct FrozenModelOptions {
  /// A Hugging Face folder, or a run folder, which stands for the model that
  /// the run exported.
  std::filesystem::path folder;
  /// In which its weights are kept and used; nullopt: as precision.parameters.
  std::optional<at::ScalarType> dtype;
};

void visit_fields(runtime::OptionFields& fields, FrozenModelOptions& options);

/// Constructs the model of a folder, which has no memory until it is wrapped.
/// @param config of the run.
using MakeFrozenModel = std::function<std::shared_ptr<zoo::Model>(
    const std::filesystem::path& folder,
    ParallelRun& parallel,
    const TrainingConfig& config)>;

/// With the weights in the folder.
std::shared_ptr<zoo::Model> pretrained_frozen_model(
    const std::filesystem::path& folder,
    ParallelRun& parallel,
    const TrainingConfig& config);

class FrozenModel {
 public:
  /// Loads and wraps it, in ZeRO stage 3, and logs its memory table. What it
  /// takes of the device and of host memory is subtracted from the limits in
  /// config.engine.memory, which are for the model that is trained: make it
  /// before that. Collective; blocks.
  /// @param label it is, for messages: "the teacher".
  /// @throws tessera::Error as from_pretrained(), under pipeline or context
  ///     parallelism, if its tokenizer has other tokens than the run's, and if
  ///     the limits leave nothing.
  FrozenModel(
      const FrozenModelOptions& options,
      const std::string& label,
      World& world,
      ParallelRun& parallel,
      TrainingConfig& config,
      const MakeFrozenModel& make = pretrained_frozen_model);

  /// Runs a batch, without its labels. Collective.
  zoo::ModelOutput forward(const zoo::ModelInput& batch);

  const zoo::Model& model() const {
    return *model_;
  }
  const Engine& engine() const {
    return *engine_;
  }

 private:
  std::shared_ptr<zoo::Model> model_;
  std::optional<Engine> engine_;
};

} // namespace tessera::tasks
