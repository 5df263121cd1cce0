// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expert_engines.h"

#include "tessera/engine/checkpoint/checkpoint.h"
#include "tessera/engine/checkpoint/whole_model.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/divided_experts.h"

#include <cmath>
#include <utility>

namespace tessera {

namespace {

const ParallelMesh& mesh_of(const EngineOptions& options) {
  TESSERA_CHECK(
      options.parallel != nullptr,
      "ExpertEngines: EngineOptions::parallel is not set; it determines which ranks have the same experts.");
  TESSERA_CHECK(
      !options.memory.device_bytes && !options.memory.host_bytes,
      "ExpertEngines: a memory budget (memory.device_bytes, .host_bytes) applies to a single engine, but expert parallelism uses two; remove it.");
  return *options.parallel;
}

EngineOptions of_rest(EngineOptions options) {
  options.sharding.groups.ignored.modules = sharding::is_divided_experts;
  return options;
}

EngineOptions of_experts(EngineOptions options, const ParallelMesh& mesh) {
  options.parallel = &mesh;
  options.log_memory = false;
  return options;
}

} // namespace

ExpertEngines::ExpertEngines(
    World& world,
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options)
    : ExpertEngines(
          world,
          module,
          sharding::divided_experts_of(*module),
          options) {}

ExpertEngines::ExpertEngines(
    World& world,
    const std::shared_ptr<torch::nn::Module>& module,
    std::shared_ptr<torch::nn::Module> experts,
    const EngineOptions& options)
    : experts_mesh_(mesh_of(options).of_experts()),
      rest_(world, module, of_rest(options)),
      experts_(world, std::move(experts), of_experts(options, experts_mesh_)) {}

void ExpertEngines::backward(const at::Tensor& loss) {
  rest_.backward(loss); // the experts' parameters are reached by it
}

std::vector<at::Tensor> ExpertEngines::run_pipeline(
    PipelineExecutor& stage,
    const PipelineCallbacks& callbacks) {
  return rest_.run_pipeline(stage, callbacks);
}

DeferredScalar ExpertEngines::clip_grad_norm(double max_norm, double p) {
  TESSERA_CHECK(
      max_norm > 0 && std::isfinite(p),
      "ExpertEngines::clip_grad_norm: max_norm is {} and p {}; both must be above 0, and p must be finite.",
      max_norm,
      p);
  const double norm = std::pow(
      std::pow(rest_.grad_norm(p), p) + std::pow(experts_.grad_norm(p), p),
      1 / p);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) {
    rest_.multiply_gradients(factor);
    experts_.multiply_gradients(factor);
  }
  return norm;
}

bool ExpertEngines::step() {
  // What may refuse the step comes first: it must not be applied by half.
  rest_.prepare_step();
  experts_.prepare_step();
  const bool rest_applied = rest_.apply_step();
  return experts_.apply_step() && rest_applied;
}

void ExpertEngines::zero_grad() {
  rest_.zero_grad();
  experts_.zero_grad();
}

void ExpertEngines::set_learning_rate(double lr) {
  rest_.set_learning_rate(lr);
  experts_.set_learning_rate(lr);
}

void ExpertEngines::sum_over_ranks(const at::Tensor& values) {
  rest_.sum_over_ranks(values);
}

void ExpertEngines::for_each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  rest_.for_each_parameter(visit);
  experts_.for_each_parameter(visit);
}

std::vector<WholeModel> ExpertEngines::whole_models() {
  std::vector<WholeModel> models;
  models.push_back(rest_.whole_model());
  models.push_back(experts_.whole_model());
  return models;
}

std::filesystem::path ExpertEngines::save(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states,
    int keep_last) {
  return engine::save_checkpoint(
      {{rest_.saved_part(), experts_.saved_part()}, rest_.scaler_, states},
      folder,
      keep_last);
}

int64_t ExpertEngines::load(
    const std::filesystem::path& path,
    const std::vector<Checkpointable*>& states) {
  return engine::load_checkpoint(
      {{rest_.loaded_part(), experts_.loaded_part()}, rest_.scaler_, states},
      path);
}

} // namespace tessera
