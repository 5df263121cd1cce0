// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_ref.h"

#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/engine/expert_engines.h"
#include "tessera/sharding/parallel/divided_experts.h"

#include <type_traits>

namespace tessera {

void EngineRef::backward(const at::Tensor& loss) {
  std::visit([&](auto* one) { one->backward(loss); }, engine_);
}

std::vector<at::Tensor> EngineRef::run_pipeline(
    PipelineExecutor& stage,
    const PipelineCallbacks& callbacks) {
  return std::visit(
      [&](auto* one) { return one->run_pipeline(stage, callbacks); }, engine_);
}

DeferredScalar EngineRef::clip_grad_norm(double max_norm) {
  return std::visit(
      [&](auto* one) { return one->clip_grad_norm(max_norm); }, engine_);
}

bool EngineRef::step() {
  return std::visit([](auto* one) { return one->step(); }, engine_);
}

double EngineRef::learning_rate() const {
  return std::visit([](auto* one) { return one->learning_rate(); }, engine_);
}

void EngineRef::set_learning_rate(double lr) {
  std::visit([&](auto* one) { one->set_learning_rate(lr); }, engine_);
}

void EngineRef::sum_over_ranks(const at::Tensor& values) {
  std::visit([&](auto* one) { one->sum_over_ranks(values); }, engine_);
}

std::filesystem::path EngineRef::save(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states,
    int keep_last) {
  return std::visit(
      [&](auto* one) { return one->save(folder, states, keep_last); }, engine_);
}

int64_t EngineRef::load(
    const std::filesystem::path& path,
    const std::vector<Checkpointable*>& states) {
  return std::visit(
      [&](auto* one) { return one->load(path, states); }, engine_);
}

Engine& EngineRef::main() {
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

OwnedEngine::~OwnedEngine() = default;

OwnedEngine::operator EngineRef() {
  return std::visit([](auto& one) { return EngineRef(*one); }, engine_);
}

std::vector<WholeModel> EngineRef::whole_models() {
  if (auto* const* engines = std::get_if<ExpertEngines*>(&engine_)) {
    return (*engines)->whole_models();
  }
  std::vector<WholeModel> models;
  models.push_back(std::get<Engine*>(engine_)->whole_model());
  return models;
}

OwnedEngine::OwnedEngine(
    World& world,
    const std::shared_ptr<torch::nn::Module>& module,
    const EngineOptions& options) {
  if (sharding::has_divided_experts(*module)) {
    engine_ = std::make_unique<ExpertEngines>(world, module, options);
  } else {
    engine_ = std::make_unique<Engine>(world, module, options);
  }
}

} // namespace tessera
