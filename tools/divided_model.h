// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DividedModel` loads a model for inference, possibly divided over ranks.

#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/zoo/models/model.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>
#include <string>

namespace tessera::tools {

struct ModelArguments {
  std::string model;
  std::string adapter; ///< LoRA on the model; empty: none
  std::string architecture;
  bool strict = true; ///< see zoo::FromPretrainedOptions::strict
  ParallelOptions parallel;
  /// Of each rank. With device_bytes, parameters that do not fit are elsewhere
  /// until their layers run.
  MemoryBudget memory;
};

/// Adds --model, --architecture, --no-strict, --tensor, --pipeline, --expert,
/// --device-memory, --host-memory and --nvme.
/// @param arguments outlive the parsing.
void add_model_options(CLI::App& app, ModelArguments& arguments);

/// The model is frozen and in evaluation mode, on World::device(). In a job of
/// several ranks, its parameters are sharded over all ranks except those that
/// divide layers. With a budget for the device, as many of them are on the
/// device as fit.
class DividedModel {
 public:
  /// Collective over the job.
  explicit DividedModel(const ModelArguments& arguments);

  zoo::Model& model() {
    return *model_;
  }
  ParallelRun& parallel() {
    return parallel_;
  }
  at::Device device() const {
    return world_.device();
  }
  World& world() {
    return world_;
  }
  /// Whether this is rank 0, which reads and prints texts.
  bool is_first() const {
    return world_.rank() == 0;
  }
  /// Whether this is the rank that has the results and writes them.
  bool reports() const;

 private:
  World& world_;
  ParallelRun parallel_;
  std::shared_ptr<zoo::Model> model_;
  std::optional<Engine> engine_; ///< nullopt if this rank holds everything
};

} // namespace tessera::tools
