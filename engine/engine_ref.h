// SPDX-License-Identifier: Apache-2.0
#pragma once
// What trains a model, whether that is one engine or two.

#include "tessera/engine/engine.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <variant>
#include <vector>

namespace tessera {

class ExpertEngines;

/// An Engine or ExpertEngines, which outlive it. Functions are theirs.
class EngineRef {
 public:
  // Implicit: functions that take it are called with either of them.
  EngineRef(Engine& engine) : engine_(&engine) {}
  EngineRef(ExpertEngines& engines) : engine_(&engines) {}

  void backward(const at::Tensor& loss);
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks);
  double clip_grad_norm(double max_norm);
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

  /// Together the model. Collective.
  std::vector<WholeModel> whole_models();

  /// Of all parameters but divided experts: loss scaling, waiting, devices.
  Engine& main();

 private:
  std::variant<Engine*, ExpertEngines*> engine_;
};

/// The engine that a module needs: ExpertEngines where ranks divide its
/// experts.
class OwnedEngine {
 public:
  /// Collective. @throws tessera::Error as either of them.
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
