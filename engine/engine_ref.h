// SPDX-License-Identifier: Apache-2.0
#pragma once
// What trains a model, whether that is one engine or two.

#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/expert_engines.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

namespace tessera {

/// An Engine or ExpertEngines, which outlive it. Functions are theirs.
class EngineRef {
 public:
  // Implicit: functions that take it are called with either of them.
  EngineRef(Engine& engine) : engine_(&engine) {}
  EngineRef(ExpertEngines& engines) : engine_(&engines) {}

  void backward(const at::Tensor& loss) {
    std::visit([&](auto* one) { one->backward(loss); }, engine_);
  }
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks) {
    return std::visit(
        [&](auto* one) { return one->run_pipeline(stage, callbacks); },
        engine_);
  }
  double clip_grad_norm(double max_norm) {
    return std::visit(
        [&](auto* one) { return one->clip_grad_norm(max_norm); }, engine_);
  }
  bool step() {
    return std::visit([](auto* one) { return one->step(); }, engine_);
  }

  double learning_rate() const {
    return std::visit([](auto* one) { return one->learning_rate(); }, engine_);
  }
  void set_learning_rate(double lr) {
    std::visit([&](auto* one) { one->set_learning_rate(lr); }, engine_);
  }
  void sum_over_ranks(const at::Tensor& values) {
    std::visit([&](auto* one) { one->sum_over_ranks(values); }, engine_);
  }

  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states,
      int keep_last) {
    return std::visit(
        [&](auto* one) { return one->save(folder, states, keep_last); },
        engine_);
  }
  int64_t load(
      const std::filesystem::path& path,
      const std::vector<Checkpointable*>& states) {
    return std::visit(
        [&](auto* one) { return one->load(path, states); }, engine_);
  }

  /// Together the model. Collective.
  std::vector<WholeModel> whole_models();

  /// Of all parameters but divided experts: loss scaling, waiting, devices.
  Engine& main() {
    return std::visit(
        [](auto* one) -> Engine& {
          if constexpr (std::is_same_v<decltype(one), Engine*>) {
            return *one;
          } else {
            return one->rest();
          }
        },
        engine_);
  }

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

  operator EngineRef() {
    return std::visit([](auto& one) { return EngineRef(*one); }, engine_);
  }

 private:
  std::variant<std::unique_ptr<Engine>, std::unique_ptr<ExpertEngines>> engine_;
};

} // namespace tessera
