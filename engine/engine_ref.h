// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EngineRef` refers to the engine of a model, whether that is an Engine or an
// ExpertEngines; `OwnedEngine` owns either.

#include "tessera/engine/engine.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <variant>
#include <vector>

namespace tessera {

class ExpertEngines;

/// Refers to an Engine or ExpertEngines, which must outlive it. Functions
/// forward to the functions of the same names.
class EngineRef {
 public:
  // Implicit, so that functions that take an EngineRef accept either engine.
  EngineRef(Engine& engine) : engine_(&engine) {}
  EngineRef(ExpertEngines& engines) : engine_(&engines) {}

  void backward(const at::Tensor& loss);
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks);
  DeferredScalar clip_grad_norm(double max_norm);
  bool step();

  double learning_rate() const;
  void set_learning_rate(double lr);
  void sum_over_ranks(const at::Tensor& values);

  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states,
      int keep_last);
  int64_t load(
      const std::filesystem::path& path,
      const std::vector<Checkpointable*>& states);

  /// The parts that together form the model. Collective.
  std::vector<WholeModel> whole_models();

  /// The engine of all parameters except divided experts: loss scaling, waits,
  /// devices.
  Engine& main();

 private:
  std::variant<Engine*, ExpertEngines*> engine_;
};

/// The engine that a module needs: ExpertEngines if ranks divide its experts,
/// else Engine.
class OwnedEngine {
 public:
  /// Collective.
  /// @throws tessera::Error as either engine.
  OwnedEngine(
      World& world,
      const std::shared_ptr<torch::nn::Module>& module,
      const EngineOptions& options);

  ~OwnedEngine();

  operator EngineRef();

 private:
  std::variant<std::unique_ptr<Engine>, std::unique_ptr<ExpertEngines>> engine_;
};

} // namespace tessera
