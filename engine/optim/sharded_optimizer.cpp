// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/optim/sharded_optimizer.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/engine/optim/tensor_rank_gradients.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_texts.h"
#include "tessera/runtime/memory/out_of_memory.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <new>
#include <string>

namespace tessera::engine {

namespace {

offload::UpdatedShard updated_shard(
    const sharding::PageSpec& page,
    const OptimizerRules& rules) {
  return {
      .page = page.name,
      .device = page.device,
      .numel = page.layout.shard_numel(),
      .types = update_types(page, rules),
      .has_separate_master = page.has_separate_master};
}

size_t number_of(const sharding::Page& page) {
  return static_cast<size_t>(page.number());
}

std::string text_of_rule(const UpdateRule& rule) {
  std::any options = rule.options();
  std::string text = name_of(rule);
  for (const auto& [key, value] :
       runtime::texts_of_list([&](runtime::OptionFields& fields) {
         rule.optimizer().visit_fields(fields, options);
       })) {
    text += " " + key + "=" + value;
  }
  return text;
}

} // namespace

ShardedOptimizer::ShardedOptimizer(
    const std::vector<sharding::PageSpec>& pages,
    sharding::PageRanks& ranks,
    const offload::TierPlan& tiers,
    const UpdatePlan& updates,
    const OptimizerRules& rules,
    const OffloadOptions& offload)
    : context_{
          .pages = pages,
          .ranks = ranks,
          .stochastic_rounding = rules.options().stochastic_rounding,
          .sites = {},
          .staging = {},
          .streamed = {pages.front().device, offload.stage_bytes}},
      overlap_(updates.overlap),
      lr_(rules.options().lr),
      sums_(pages.size()) {
  for (size_t g = 0; g < context_.pages.size(); ++g) {
    const sharding::PageSpec& page = context_.pages[g];
    first_parameters_.push_back(parameters_.size());
    context_.sites.emplace_back();
    if (!page.trainable) {
      continue;
    }
    context_.sites.back().emplace(
        updated_shard(page, rules), tiers.pages[g], updates.streams[g]);
    for (size_t i = 0; i < page.parameters.size(); ++i) {
      OptimizedParameter parameter;
      parameter.paged = &page.parameters[i];
      parameter.group = g;
      parameter.position = i;
      parameter.settings =
          rules.settings_for(parameter.paged->record.spec.names);
      parameters_.push_back(std::move(parameter));
    }
  }
  first_parameters_.push_back(parameters_.size());
  is_all_on_device_ =
      overlap_ == UpdateOverlap::kOff && !context_.device_of_sums().is_cpu();
  // The parameters' addresses are final only now.
  std::map<size_t, std::vector<OptimizedParameter*>> by_rule;
  for (OptimizedParameter& parameter : parameters_) {
    by_rule[parameter.settings.rule_origin].push_back(&parameter);
  }
  for (const auto& [origin, parameters] : by_rule) {
    const UpdateRule& rule = parameters.front()->settings.rule;
    rule.optimizer().add_methods(
        context_, parameters, rule.options(), methods_);
  }
  if (rules.options().ema_decay > 0) {
    averages_ = std::make_unique<WeightAverages>(
        context_, parameters_, tiers.pages, rules.options());
  }
  updates_ = std::make_unique<offload::PageUpdates>(
      pages.size(),
      pages.front().device,
      context_.streamed,
      overlap_ != UpdateOverlap::kOff);
  if (overlap_ == UpdateOverlap::kSpeculate) {
    add_speculation();
  }
}

/// For pages that one elementwise method updates, on the CPU.
void ShardedOptimizer::add_speculation() {
  std::vector<int> methods_of(context_.pages.size(), 0);
  for (const auto& method : methods_) {
    for (const MethodShard& part : method->parts()) {
      ++methods_of[part.group];
    }
  }
  for (const auto& method : methods_) {
    for (MethodShard& part : method->parts()) {
      if (method->is_elementwise() && methods_of[part.group] == 1 &&
          context_.sites[part.group]->device().is_cpu() &&
          !context_.sites[part.group]->streams()) {
        updates_->add_speculation(part.group, *part.state);
      }
    }
  }
}

TierBytes ShardedOptimizer::planned_bytes() const {
  TierBytes bytes{};
  for (const auto& method : methods_) {
    method->add_state_bytes(bytes);
  }
  if (averages_) {
    averages_->add_state_bytes(bytes);
  }
  updates_->add_bytes(bytes);
  const auto staging = static_cast<size_t>(MemoryPurpose::kStaging);
  bytes[static_cast<size_t>(MemoryTier::kHost)][staging] +=
      context_.staging.bytes();
  bytes[static_cast<size_t>(MemoryTier::kDevice)][staging] +=
      context_.streamed.bytes();
  return bytes;
}

void ShardedOptimizer::allocate_state(
    const std::vector<std::optional<offload::RestingShards>>& shards,
    offload::TierStores& stores,
    MemoryLedger& ledger) {
  const c10::NoGradGuard no_grad;
  for (size_t g = 0; g < shards.size(); ++g) {
    access_.push_back(
        shards[g] ? std::make_unique<offload::ShardAccess>(
                        *context_.sites[g], *shards[g], context_.streamed)
                  : nullptr);
  }
  context_.staging.allocate(stores.host_memory());
  context_.streamed.allocate(ledger);
  const StateMemory memory{stores, ledger, access_};
  for (const auto& method : methods_) {
    method->allocate(memory);
  }
  if (averages_) {
    averages_->allocate(memory);
  }
  for (size_t g = 0; g < shards.size(); ++g) {
    updates_->allocate(g, stores.host_memory(), stores.store(g));
  }
}

void ShardedOptimizer::set_parameter_options(
    const at::Tensor& parameter,
    const ParameterRule& rule,
    size_t rule_version) {
  const auto found = std::find_if(
      parameters_.begin(),
      parameters_.end(),
      [&](const OptimizedParameter& candidate) {
        return candidate.paged->record.tensor.is_same(parameter);
      });
  TESSERA_CHECK(
      found != parameters_.end(),
      "a parameter of sizes {} is not trained by this engine: it is frozen, ignored, or not of the wrapped module. Pass parameters of the module that require a gradient.",
      parameter.sizes());
  ParameterSettings& settings = found->settings;
  check_weight_decay(rule.rule.value_or(settings.rule), rule.weight_decay);
  if (rule.rule) {
    const Optimizer& optimizer = settings.rule.optimizer();
    TESSERA_CHECK(
        &optimizer == &rule.rule->optimizer() &&
            optimizer.updates_elements_alone(),
        "'{}' is trained by {}; {} cannot take its place after wrap(), which planned the memory of its state, and of {} options cannot change either. Set EngineOptions::optimizer.",
        found->name(),
        optimizer.name(),
        rule.rule->optimizer().name(),
        "LAMB, Adafactor and Muon");
    TESSERA_CHECK(
        optimizer.max_moments(settings.rule.options()) ==
            optimizer.max_moments(rule.rule->options()),
        "'{}': with these options {} needs {} state tensors, but wrap() has made {}. Set EngineOptions::optimizer to options with as many, such as a momentum above 0.",
        found->name(),
        optimizer.name(),
        optimizer.max_moments(rule.rule->options()),
        optimizer.max_moments(settings.rule.options()));
    settings.rule = *rule.rule;
    settings.rule_version = rule_version;
  }
  settings.lr_scale = rule.lr_scale.value_or(settings.lr_scale);
  settings.weight_decay = rule.weight_decay.value_or(settings.weight_decay);
  settings.frozen_steps = rule.frozen_steps.value_or(settings.frozen_steps);
  parameter_hash_.reset();
  updates_->drop_speculation(found->group);
}

void ShardedOptimizer::note_clipping(const char* function, double value) {
  clipping_ +=
      (clipping_.empty() ? "" : ", ") + formatted("{}({})", function, value);
}

runtime::OptionTexts ShardedOptimizer::parameter_settings() const {
  runtime::OptionTexts texts;
  std::map<size_t, std::string> rules; // by version
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterSettings& settings = parameters_[i].settings;
    std::string& rule = rules[settings.rule_version];
    if (rule.empty()) {
      rule = text_of_rule(settings.rule);
    }
    // Other ranks may have other experts in its place.
    const std::string name = context_.pages[parameters_[i].group].of_experts
                                 ? formatted("number {}, of experts", i)
                                 : "'" + parameters_[i].name() + "'";
    texts["the optimizer of parameter " + name] = formatted(
        "{} with lr_scale={} weight_decay={} frozen_steps={}",
        rule,
        settings.lr_scale,
        settings.weight_decay,
        settings.frozen_steps);
  }
  return texts;
}

runtime::OptionTexts ShardedOptimizer::settings() const {
  runtime::OptionTexts texts = parameter_settings();
  texts["the learning rate"] = formatted("{}", lr_);
  texts["what clips the gradients"] = clipping_.empty() ? "nothing" : clipping_;
  return texts;
}

int64_t ShardedOptimizer::hash_of_settings() {
  const std::hash<std::string> hash;
  if (!parameter_hash_) {
    std::string all;
    for (const auto& [name, value] : parameter_settings()) {
      all += value + "\n";
    }
    parameter_hash_ = hash(all);
  }
  return static_cast<int64_t>(
      hash(formatted("{} {} {}", lr_, clipping_, *parameter_hash_)));
}

void ShardedOptimizer::check_full() const {
  TESSERA_CHECK(
      damage_.empty(),
      "the optimizer state is incomplete: an update failed ({}). Create a new engine and load the last checkpoint.",
      damage_);
}

void ShardedOptimizer::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (damage_.empty()) {
      damage_ = error.what();
      // That memory ran out in step() is told them by the engine, with more.
      const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
      const bool is_told =
          dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
          (torch_error != nullptr && runtime::is_out_of_memory(*torch_error));
      if (overlap_ != UpdateOverlap::kOff || !is_told) {
        context_.ranks.abandon(damage_);
      }
    }
    throw;
  }
}

std::span<OptimizedParameter> ShardedOptimizer::parameters_of(
    const sharding::Page& page) {
  const auto g = number_of(page);
  return std::span(parameters_)
      .subspan(
          first_parameters_[g],
          first_parameters_[g + 1] - first_parameters_[g]);
}

void ShardedOptimizer::begin_update(
    const sharding::Page& page,
    OptimizedParameter& parameter,
    double grad_scale) {
  const sharding::GradientBucket& bucket = *page.gradients;
  if (is_all_on_device_) {
    parameter.grad_scale = grad_scale * bucket.known_factor();
    parameter.grad_factor = bucket.deferred_factor().on_device();
  } else {
    parameter.grad_scale = grad_scale * bucket.factor();
  }
  parameter.has_gradient = bucket.has_gradient(parameter.position);
  if (parameter.has_gradient) {
    ++parameter.steps;
  }
}

std::vector<offload::StateUpdate> ShardedOptimizer::prepare(
    const sharding::Page& page) {
  std::vector<offload::StateUpdate> updates;
  for (const auto& method : methods_) {
    if (method->is_elementwise()) {
      if (auto update = method->prepare(page, {lr_})) {
        updates.push_back(std::move(*update));
      }
    }
  }
  return updates;
}

void ShardedOptimizer::begin_backward(
    const sharding::PageTable& pages,
    double grad_scale) {
  speculated_scale_ = grad_scale;
  began_backward_ = true;
  updates_->begin_step();
  for (const auto& method : methods_) {
    method->begin_backward(pages);
  }
}

sharding::GradientSums& ShardedOptimizer::gradient_sums(
    const sharding::PageTable& pages,
    double p) {
  if (overlap_ == UpdateOverlap::kOff) {
    sums_.forget_all(); // nobody has told of changes
  }
  sums_p_ = p;
  guarded([&] {
    updates_->wait_for_sums();
    if (!sums_.knows_all(pages, p)) {
      updates_->wait_all(); // they may read the same gradients
    }
  });
  return sums_;
}

bool ShardedOptimizer::on_final_gradients(sharding::Page& page) {
  const c10::NoGradGuard no_grad;
  const auto g = number_of(page);
  const sharding::GradientBucket& bucket = *page.gradients;
  if (bucket.is_applying()) {
    check_full();
    for (OptimizedParameter& parameter : parameters_of(page)) {
      begin_update(page, parameter, /*grad_scale=*/1);
    }
    guarded([&] { updates_->update(g, prepare(page)); });
    return updates_->overlaps();
  }
  auto sums = sums_.begin(page, sums_p_);
  const c10::Device device = page.device();
  if (!device.is_cpu() && bucket.shard().is_on(device)) {
    sums(); // is issued to the reduce lane
  } else {
    updates_->submit_sums(g, std::move(sums));
  }
  if (updates_->speculates(g)) {
    speculate(page);
  }
  return true;
}

void ShardedOptimizer::speculate(const sharding::Page& page) {
  for (OptimizedParameter& parameter : parameters_of(page)) {
    begin_update(page, parameter, speculated_scale_);
  }
  std::vector<offload::StateUpdate> updates = prepare(page);
  // Steps are counted by step().
  for (OptimizedParameter& parameter : parameters_of(page)) {
    parameter.steps -= parameter.has_gradient ? 1 : 0;
  }
  for (offload::StateUpdate& update : updates) {
    // One at most.
    updates_->speculate(number_of(page), std::move(update));
  }
}

runtime::StreamMarks ShardedOptimizer::before_gradients_change(
    const sharding::Page& page) {
  sums_.forget(page);
  updates_->drop_speculation(number_of(page));
  return before_shard_use(page);
}

runtime::StreamMarks ShardedOptimizer::before_shard_use(
    const sharding::Page& page) {
  runtime::StreamMarks marks;
  guarded([&] { marks = updates_->wait(number_of(page)); });
  return marks;
}

void ShardedOptimizer::finish_updates() {
  guarded([&] { updates_->wait_all(); });
}

void ShardedOptimizer::step_pages(
    const StepInput& input,
    double average_factor) {
  const bool all_elementwise =
      std::all_of(methods_.begin(), methods_.end(), [](const auto& method) {
        return method->is_elementwise();
      });
  const auto average = [&](sharding::Page& page) {
    if (averages_) {
      updates_->submit(
          number_of(page), [this, g = number_of(page), average_factor] {
            averages_->update(g, average_factor);
          });
    }
  };
  for (const auto& page : input.pager->pages()) {
    updates_->update(number_of(*page), prepare(*page));
    if (all_elementwise) {
      average(*page);
    }
  }
  if (!all_elementwise) {
    updates_->wait_all();
    for (const auto& method : methods_) {
      if (!method->is_elementwise()) {
        method->step(input);
      }
    }
    for (const auto& page : input.pager->pages()) {
      average(*page);
    }
  }
  updates_->end_step();
}

void ShardedOptimizer::check_tensor_ranks(sharding::Pager& pager) {
  // Batches are chosen in the wrong way from the first step on; ranks that go
  // apart later are found without reading all gradients in every step.
  constexpr int64_t kFirst = 10;
  constexpr int64_t kInterval = 100;
  const int64_t step = checked_steps_++;
  if (step < kFirst || step % kInterval == 0) {
    check_tensor_rank_gradients(pager, gradient_sums(pager.pages(), 2));
  }
}

void ShardedOptimizer::step(sharding::Pager& pager, double grad_scale) {
  const c10::NoGradGuard no_grad;
  check_full();
  end_settings();
  for (OptimizedParameter& parameter : parameters_) {
    begin_update(pager.pages()[parameter.group], parameter, grad_scale);
  }
  const StepInput input{lr_, &pager};
  const double average_factor = averages_ ? averages_->begin_step() : 0;
  guarded([&] {
    if (updates_->overlaps()) {
      step_pages(input, average_factor);
      return;
    }
    for (const auto& method : methods_) {
      method->step(input);
    }
    context_.streamed.join();
    for (size_t g = 0; averages_ && g < context_.pages.size(); ++g) {
      averages_->update(g, average_factor);
    }
  });
  ++steps_;
}

void ShardedOptimizer::visit_state(StateVisitor& visitor) {
  const c10::NoGradGuard no_grad;
  check_full();
  finish_updates();
  for (const auto& method : methods_) {
    method->visit_state(visitor);
  }
  if (averages_) {
    averages_->visit_state(visitor);
  }
}

void ShardedOptimizer::exchange_averages(sharding::Pager& pager) {
  check_full();
  finish_updates();
  pager.wait_for_gather_lane();
  averages_->exchange(pager);
  pager.invalidate();
}

} // namespace tessera::engine
