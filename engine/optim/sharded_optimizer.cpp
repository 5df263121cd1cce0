// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/sharded_optimizer.h"

#include "tessera/runtime/core/error.h"

#include <c10/core/GradMode.h>

#include <map>
#include <regex>

namespace tessera {

namespace {

using Parameters = std::vector<OptimizedParameter*>;

bool is_hidden_matrix(
    const OptimizedParameter& parameter,
    const MuonOptions& options) {
  const ParameterRecord& record = parameter.paged->record;
  if (record.tensor.dim() != 2 || record.tensor.numel() == 0) {
    return false;
  }
  for (const std::string& pattern : options.not_hidden) {
    const std::regex expression(pattern);
    for (const std::string& name : record.names) {
      if (std::regex_search(name, expression)) {
        return false;
      }
    }
  }
  return true;
}

/// Makes the methods of one rule.
struct MethodMaker {
  UpdateContext& context;
  const Parameters& parameters;
  std::vector<std::unique_ptr<UpdateMethod>>& methods;

  void operator()(const AdamWOptions& options) const {
    methods.push_back(make_adam(context, parameters, options, true));
  }
  void operator()(const AdamOptions& options) const {
    methods.push_back(make_adam(
        context,
        parameters,
        {options.beta1, options.beta2, options.eps, options.sqrt_rounding},
        false));
  }
  void operator()(const SgdOptions& options) const {
    methods.push_back(make_sgd(context, parameters, options));
  }
  void operator()(const LionOptions& options) const {
    methods.push_back(make_lion(context, parameters, options));
  }
  void operator()(const LambOptions& options) const {
    methods.push_back(make_lamb(context, parameters, options));
  }
  void operator()(const AdafactorOptions& options) const {
    methods.push_back(make_adafactor(context, parameters, options));
  }
  void operator()(const MuonOptions& options) const {
    Parameters hidden;
    Parameters rest;
    for (OptimizedParameter* parameter : parameters) {
      (is_hidden_matrix(*parameter, options) ? hidden : rest)
          .push_back(parameter);
    }
    if (!hidden.empty()) {
      methods.push_back(make_muon(context, hidden, options));
    }
    if (!rest.empty()) {
      methods.push_back(make_adam(context, rest, options.rest, true));
    }
  }
  void operator()(const UserOptimizerOptions& options) const {
    methods.push_back(make_user_method(context, parameters, options));
  }
};

} // namespace

ShardedOptimizer::ShardedOptimizer(
    Pager& pager,
    StateTiers& tiers,
    const OptimizerOptions& options,
    const OffloadOptions& offload)
    : plan_(plan_updates(pager, tiers, options, offload)),
      context_{
          pager,
          tiers,
          {},
          {pager.groups().front()->device(), offload.stage_bytes},
          plan_.streams,
          {},
          options.moment_dtype,
          options.stochastic_rounding},
      lr_(options.lr) {
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    ParamGroup& group = *pager.groups()[g];
    if (!group.trainable()) {
      context_.access.push_back(nullptr);
      continue;
    }
    context_.access.push_back(std::make_unique<ShardAccess>(
        group,
        *pager.bucket(g),
        tiers.tier(g) == MemoryTier::kDevice || plan_.streams[g]));
    for (size_t i = 0; i < group.parameters().size(); ++i) {
      OptimizedParameter parameter;
      parameter.paged = &group.parameters()[i];
      parameter.group = g;
      parameter.position = i;
      parameter.settings = settings_for(options, parameter.paged->record.names);
      parameters_.push_back(std::move(parameter));
    }
  }
  // The parameters' addresses are final only now.
  std::map<size_t, Parameters> by_rule;
  for (OptimizedParameter& parameter : parameters_) {
    by_rule[parameter.settings.rule_origin].push_back(&parameter);
  }
  for (const auto& [origin, parameters] : by_rule) {
    std::visit(
        MethodMaker{context_, parameters, methods_},
        parameters.front()->settings.rule);
  }
  for (const auto& method : methods_) {
    method->announce_staging();
  }
}

ShardedOptimizer::~ShardedOptimizer() = default;

TierBytes ShardedOptimizer::planned_bytes() const {
  TierBytes bytes{};
  for (const auto& method : methods_) {
    method->add_state_bytes(bytes);
  }
  const auto staging = static_cast<size_t>(MemoryPurpose::kStaging);
  bytes[static_cast<size_t>(MemoryTier::kHost)][staging] +=
      context_.stage.bytes() + context_.tiers.staging_bytes();
  bytes[static_cast<size_t>(MemoryTier::kDevice)][staging] +=
      context_.streamed.bytes();
  return bytes;
}

std::string ShardedOptimizer::update_table() const {
  return tessera::update_table(plan_, context_.pager, context_.tiers);
}

void ShardedOptimizer::allocate_state(MemoryLedger& ledger) {
  const c10::NoGradGuard no_grad;
  context_.stage.allocate(context_.tiers.host_memory());
  context_.streamed.allocate(ledger);
  for (const auto& method : methods_) {
    method->allocate(ledger);
  }
}

void ShardedOptimizer::check_whole() const {
  TESSERA_CHECK(
      damage_.empty(),
      "the optimizer's state is no longer whole: an update failed (",
      damage_,
      "). Make a new engine and load the last checkpoint.");
}

void ShardedOptimizer::apply(const std::function<void(UpdateMethod&)>& update) {
  try {
    for (const auto& method : methods_) {
      update(*method);
    }
    context_.streamed.join();
  } catch (const std::exception& error) {
    damage_ = error.what();
    throw;
  }
}

void ShardedOptimizer::begin_update(
    OptimizedParameter& parameter,
    double grad_scale) {
  const GradientBucket& bucket = *context_.pager.bucket(parameter.group);
  parameter.grad_scale = grad_scale * bucket.factor();
  if (bucket.has_gradient(parameter.position)) {
    ++parameter.steps;
  }
}

void ShardedOptimizer::update_group(size_t g) {
  const c10::NoGradGuard no_grad;
  check_whole();
  for (OptimizedParameter& parameter : parameters_) {
    if (parameter.group == g) {
      begin_update(parameter, /*grad_scale=*/1);
    }
  }
  apply([&](UpdateMethod& method) { method.update_group(g, {lr_}); });
}

void ShardedOptimizer::step(double grad_scale) {
  const c10::NoGradGuard no_grad;
  check_whole();
  for (OptimizedParameter& parameter : parameters_) {
    begin_update(parameter, grad_scale);
  }
  apply([&](UpdateMethod& method) { method.step({lr_}); });
  ++steps_;
}

at::Tensor ShardedOptimizer::load_master(size_t g) const {
  check_whole();
  return context_.pager.groups()[g]->read_master();
}

void ShardedOptimizer::store_master(size_t g, const at::Tensor& values) {
  context_.pager.groups()[g]->write_master(values);
}

void ShardedOptimizer::visit_state(StateVisitor& visitor) {
  const c10::NoGradGuard no_grad;
  check_whole();
  for (const auto& method : methods_) {
    method->visit_state(visitor);
  }
}

} // namespace tessera
