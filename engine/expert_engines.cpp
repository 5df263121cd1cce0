// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/expert_engines.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/divided_experts.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {

namespace {

const ParallelMesh& mesh_of(const EngineOptions& options) {
  TESSERA_CHECK(
      options.parallel != nullptr,
      "ExpertEngines: EngineOptions::parallel is not set; it says which ranks "
      "have the same experts.");
  TESSERA_CHECK(
      !options.memory.device_bytes && !options.memory.host_bytes,
      "ExpertEngines: a memory budget (memory.device_bytes, .host_bytes) holds "
      "for one engine, and here are two; leave it out.");
  return *options.parallel;
}

std::unordered_map<std::string, std::string> whole_names(
    const torch::nn::Module& module,
    const torch::nn::Module& list) {
  std::unordered_map<const c10::TensorImpl*, std::string> of_tensor;
  for (const auto& item : module.named_parameters()) {
    of_tensor.emplace(item.value().unsafeGetTensorImpl(), item.key());
  }
  std::unordered_map<std::string, std::string> names;
  for (const auto& item : list.named_parameters()) {
    names.emplace(item.key(), of_tensor.at(item.value().unsafeGetTensorImpl()));
  }
  return names;
}

/// "2-of-4": the first ranks of the groups that have the same experts, counted.
std::string part_name(const ParallelMesh& mesh, int rank) {
  const auto groups = mesh.groups(ParallelGroup::kSameExperts);
  const auto own = std::find(
      groups.begin(),
      groups.end(),
      mesh.ranks(ParallelGroup::kSameExperts, rank));
  return std::to_string(own - groups.begin() + 1) + "-of-" +
         std::to_string(groups.size());
}

EngineOptions of_rest(EngineOptions options) {
  options.sharding.groups.ignored.modules = is_divided_experts;
  return options;
}

EngineOptions of_experts_alone(EngineOptions options) {
  options.parallel = nullptr;
  options.log_memory = false;
  return options;
}

} // namespace

ExpertEngines::ExpertEngines(
    World& world,
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options)
    : ExpertEngines(world, module, divided_experts_of(*module), options) {}

ExpertEngines::ExpertEngines(
    World& world,
    const std::shared_ptr<torch::nn::Module>& module,
    std::shared_ptr<torch::nn::Module> list,
    const EngineOptions& options)
    : names_(whole_names(*module, *list)),
      part_(part_name(mesh_of(options), world.rank())),
      same_experts_(world.part(
          world.unique_name("experts"),
          mesh_of(options).ranks(ParallelGroup::kSameExperts, world.rank()))),
      rest_(world, module, of_rest(options)),
      experts_(*same_experts_, std::move(list), of_experts_alone(options)) {}

void ExpertEngines::backward(const at::Tensor& loss) {
  rest_.backward(loss); // the experts' parameters are reached by it
}

std::vector<at::Tensor> ExpertEngines::run_pipeline(
    PipelineExecutor& stage,
    const PipelineCallbacks& callbacks) {
  return rest_.run_pipeline(stage, callbacks);
}

double ExpertEngines::clip_grad_norm(double max_norm, double p) {
  TESSERA_CHECK(
      max_norm > 0 && std::isfinite(p),
      "ExpertEngines::clip_grad_norm: max_norm is ",
      max_norm,
      " and p ",
      p,
      "; they must be above 0, and p finite.");
  const double of_rest = rest_.grad_norm(p);
  // Each part of the experts is counted by all ranks that have it.
  const at::Tensor of_experts = at::full(
      {1},
      std::pow(experts_.grad_norm(p), p) / same_experts_->size(),
      at::kDouble);
  rest_.sum_over_ranks(of_experts);
  const double norm =
      std::pow(std::pow(of_rest, p) + of_experts.item<double>(), 1 / p);
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) {
    rest_.multiply_gradients(factor);
    experts_.multiply_gradients(factor);
  }
  return norm;
}

bool ExpertEngines::step() {
  rest_.step();
  return experts_.step();
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
  experts_.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        visit(names_.at(name), value);
      });
}

std::filesystem::path ExpertEngines::of_experts(
    const std::filesystem::path& folder) const {
  return folder / ("experts-" + part_);
}

std::filesystem::path ExpertEngines::save(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states,
    int keep_last) {
  // First, and one more is kept: the rest's latest always has its experts.
  experts_.save(of_experts(folder), {}, keep_last == 0 ? 0 : keep_last + 1);
  return rest_.save(folder, states, keep_last);
}

int64_t ExpertEngines::load(
    const std::filesystem::path& folder,
    const std::vector<Checkpointable*>& states) {
  const std::filesystem::path own = of_experts(folder);
  TESSERA_CHECK(
      std::filesystem::is_directory(own),
      "ExpertEngines::load: ",
      own,
      " is not there; a model's experts are loaded on as many ranks as they "
      "were saved by, with the layers divided in the same way.");
  const std::filesystem::path latest = find_checkpoint(folder);
  experts_.load(own / latest.filename());
  return rest_.load(latest, states);
}

} // namespace tessera
