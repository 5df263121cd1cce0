// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera {

Engine::Engine(
    World& world,
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options)
    : module_(std::move(module)), ledger_(std::make_unique<MemoryLedger>()) {
  TESSERA_CHECK(module_ != nullptr, "wrap: the module is null.");
  // Before the module is divided: from there on an error would cost it.
  check(options.optimizer, *module_);
  pager_ = std::make_unique<Pager>(world, *module_, options.sharding, *ledger_);
  optimizer_ = std::make_unique<ShardedOptimizer>(*pager_, options.optimizer);
  planned_memory_ = plan_memory();
  if (options.log_memory && world.rank() == 0) {
    log_info(memory_table(
        "memory of rank 0 of " + std::to_string(world.size()) + ", " +
            std::to_string(pager_->groups().size()) +
            " groups (activations not included)",
        planned_memory_));
  }
  optimizer_->allocate_state(*ledger_);
}

Engine::~Engine() = default;
Engine::Engine(Engine&&) noexcept = default;

MemoryBytes Engine::plan_memory() const {
  MemoryBytes bytes = pager_->planned_bytes();
  bytes[static_cast<size_t>(MemoryPurpose::kOptimizerState)] =
      optimizer_->state_bytes();
  return bytes;
}

void Engine::check_usable(const char* function) const {
  TESSERA_CHECK(
      !pager_->unwrapped(),
      "Engine::",
      function,
      ": the module was unwrapped; wrap it again to train it.");
}

void Engine::backward(const at::Tensor& loss) {
  check_usable("backward");
  TESSERA_CHECK(
      loss.defined() && loss.numel() == 1,
      "Engine::backward: the loss has shape ",
      loss.defined() ? loss.sizes() : c10::IntArrayRef{},
      "; it must be one number. Reduce it, e.g. with .mean().");
  TESSERA_CHECK(
      loss.requires_grad(),
      "Engine::backward: the loss does not depend on a parameter that requires "
      "a gradient. Was it computed under NoGradGuard?");
  pager_->check_identity();
  loss.backward();
}

double Engine::clip_grad_norm(double max_norm) {
  check_usable("clip_grad_norm");
  TESSERA_CHECK(
      max_norm > 0,
      "Engine::clip_grad_norm: max_norm is ",
      max_norm,
      "; it must be above 0.");
  const c10::NoGradGuard no_grad;
  pager_->settle_gradients({RankIntent::Kind::kClip, -1, -1});
  const auto gradients = pager_->gradient_runs();
  double squares = 0;
  for (const at::Tensor& run : gradients) {
    const double norm =
        at::linalg_vector_norm(run, 2, {}, false, at::kDouble).item<double>();
    squares += norm * norm;
  }
  const at::Tensor total = at::tensor({squares}, at::kDouble);
  sum_over_ranks(total);
  const double norm = std::sqrt(total.item<double>());
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) {
    for (const at::Tensor& run : gradients) {
      run.mul_(factor);
    }
  }
  return norm;
}

void Engine::step() {
  check_usable("step");
  const c10::NoGradGuard no_grad;
  pager_->settle_gradients();
  TESSERA_CHECK(
      pager_->any_gradient(),
      "Engine::step: no parameter has a gradient. Call engine.backward(loss) "
      "first, with a loss computed from the wrapped module.");
  optimizer_->step();
  pager_->begin_next_step();
}

void Engine::zero_grad() {
  check_usable("zero_grad");
  module_->zero_grad();
}

at::Tensor Engine::grad(const at::Tensor& parameter) {
  check_usable("grad");
  const c10::NoGradGuard no_grad;
  const size_t index = pager_->find_parameter(parameter);
  pager_->settle_gradients(
      {RankIntent::Kind::kReadGradient,
       static_cast<int64_t>(pager_->parameters()[index].group),
       static_cast<int64_t>(index)});
  return pager_->whole_gradient(index);
}

GatherScope Engine::gather(bool writable) {
  check_usable("gather");
  std::vector<size_t> groups(pager_->groups().size());
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g] = g;
  }
  return {*pager_, std::move(groups), writable};
}

GatherScope Engine::gather(
    const std::vector<at::Tensor>& parameters,
    bool writable) {
  check_usable("gather");
  return {*pager_, groups_of(parameters), writable};
}

GatherScope Engine::gather(const torch::nn::Module& part, bool writable) {
  return gather(part.parameters(), writable);
}

std::vector<size_t> Engine::groups_of(
    const std::vector<at::Tensor>& tensors) const {
  std::vector<size_t> groups;
  for (const at::Tensor& tensor : tensors) {
    groups.push_back(
        pager_->parameters()[pager_->find_parameter(tensor)].group);
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

void Engine::for_each_parameter(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  check_usable("for_each_parameter");
  for (size_t g = 0; g < pager_->groups().size(); ++g) {
    const GatherScope scope(*pager_, {g}, /*writable=*/false);
    for (const auto& parameter : pager_->groups()[g]->parameters()) {
      for (const std::string& name : parameter.record.names) {
        visit(name, parameter.record.tensor.detach());
      }
    }
  }
}

void Engine::unwrap() {
  check_usable("unwrap");
  pager_->unwrap();
}

void Engine::sum_over_ranks(const at::Tensor& values) {
  pager_->sum_over_ranks(values);
}

double Engine::learning_rate() const {
  return optimizer_->learning_rate();
}

void Engine::set_learning_rate(double lr) {
  TESSERA_CHECK(
      lr >= 0 && std::isfinite(lr),
      "Engine::set_learning_rate: ",
      lr,
      " is not a learning rate; it must be finite and at least 0.");
  optimizer_->set_learning_rate(lr);
}

MemoryBytes Engine::measured_memory() const {
  return ledger_->live_bytes();
}

const PagerStatistics& Engine::statistics() const {
  return pager_->statistics();
}

Engine wrap(torch::nn::Module& module, const EngineOptions& options) {
  // The caller keeps the ownership: a shared_ptr that frees nothing.
  return Engine(
      init(),
      std::shared_ptr<torch::nn::Module>(&module, [](torch::nn::Module*) {}),
      options);
}

Engine wrap(
    std::shared_ptr<torch::nn::Module> module,
    const EngineOptions& options) {
  return Engine(init(), std::move(module), options);
}

} // namespace tessera
