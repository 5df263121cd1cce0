// SPDX-License-Identifier: Apache-2.0
#include "finetune_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

namespace tessera {

namespace {

/// Two numbers, at least 0 and below 1.
template <typename Options>
void read_betas(const ConfigReader& reader, Options& options) {
  const auto betas = reader.get_doubles(
      "betas",
      {.min = 0, .max = 1, .open_max = true},
      std::vector<double>{options.beta1, options.beta2});
  if (betas.size() != 2) {
    reader.fail("betas", "expected two numbers");
  }
  options.beta1 = betas[0];
  options.beta2 = betas[1];
}

/// Reads what each kind of optimizer has.
struct RuleReader {
  const ConfigReader& reader;

  template <typename Options>
  void read_adam(Options& options) const {
    read_betas(reader, options);
    options.eps =
        reader.get_double("eps", {.min = 0, .open_min = true}, options.eps);
  }
  void operator()(AdamWOptions& options) const {
    read_adam(options);
  }
  void operator()(AdamOptions& options) const {
    read_adam(options);
  }
  void operator()(SgdOptions& options) const {
    options.momentum =
        reader.get_double("momentum", {.min = 0}, options.momentum);
    options.dampening =
        reader.get_double("dampening", {.min = 0}, options.dampening);
    options.nesterov = reader.get_bool("nesterov", options.nesterov);
  }
  void operator()(LionOptions& options) const {
    read_betas(reader, options);
  }
  void operator()(LambOptions& options) const {
    read_adam(options);
  }
  void operator()(AdafactorOptions& options) const {
    options.clip_threshold = reader.get_double(
        "clip_threshold", {.min = 0, .open_min = true}, options.clip_threshold);
    options.scale_by_parameter =
        reader.get_bool("scale_by_parameter", options.scale_by_parameter);
  }
  void operator()(MuonOptions& options) const {
    options.momentum =
        reader.get_double("momentum", {.min = 0}, options.momentum);
    options.not_hidden = reader.get_strings("not_hidden", options.not_hidden);
    read_adam(options.rest);
  }
  void operator()(UserOptimizerOptions&) const {}
};

UpdateRule read_rule(const ConfigReader& reader) {
  const std::vector<UpdateRule> rules{
      AdamWOptions{},
      AdamOptions{},
      SgdOptions{},
      LionOptions{},
      LambOptions{},
      AdafactorOptions{},
      MuonOptions{}};
  return rules[reader.get_enum<size_t>(
      "type",
      {{"adamw", 0},
       {"adam", 1},
       {"sgd", 2},
       {"lion", 3},
       {"lamb", 4},
       {"adafactor", 5},
       {"muon", 6}},
      0)];
}

void read_parameter_rules(
    const ConfigReader& reader,
    OptimizerOptions& optimizer) {
  for (const ConfigReader& entry : reader.get_objects("parameters")) {
    ParameterRule rule;
    rule.pattern = entry.get_string("pattern");
    rule.lr_scale = entry.get_double("lr_scale", {.min = 0}, 1.0);
    if (entry.contains("weight_decay")) {
      rule.weight_decay = entry.get_double("weight_decay", {.min = 0});
    }
    if (entry.contains("hold_steps")) {
      rule.hold_steps = entry.get_int("hold_steps", {.min = 0});
    }
    optimizer.parameters.push_back(std::move(rule));
  }
}

void read_optimizer(const ConfigReader& reader, FinetuneConfig& config) {
  OptimizerOptions& optimizer = config.engine.optimizer;
  optimizer.rule = read_rule(reader);
  optimizer.lr = reader.get_double("lr", {.min = 0}, optimizer.lr);
  std::visit(RuleReader{reader}, optimizer.rule);
  optimizer.weight_decay = reader.get_double(
      "weight_decay", {.min = 0}, settings_for(optimizer, {}).weight_decay);
  optimizer.hold_steps = reader.get_int("hold_steps", {.min = 0}, 0);
  read_parameter_rules(reader, optimizer);
}

void read_schedule(const ConfigReader& reader, FinetuneConfig& config) {
  LrScheduleOptions& schedule = config.trainer.schedule;
  schedule.decay = reader.get_enum<LrDecay>(
      "decay",
      {{"constant", LrDecay::kConstant},
       {"linear", LrDecay::kLinear},
       {"cosine", LrDecay::kCosine},
       {"polynomial", LrDecay::kPolynomial},
       {"noam", LrDecay::kNoam},
       {"exponential", LrDecay::kExponential},
       {"step", LrDecay::kStep},
       {"multi_step", LrDecay::kMultiStep},
       {"one_cycle", LrDecay::kOneCycle},
       {"wsd", LrDecay::kWsd}},
      LrDecay::kLinear);
  schedule.warmup_steps = reader.get_int("warmup_steps", {.min = 0}, 0);
  schedule.final_factor =
      reader.get_double("final_factor", {.min = 0, .max = 1}, 0.0);
  if (schedule.decay == LrDecay::kPolynomial) {
    schedule.power = reader.get_double("power", {.min = 0}, schedule.power);
  }
  if (schedule.decay == LrDecay::kExponential ||
      schedule.decay == LrDecay::kStep ||
      schedule.decay == LrDecay::kMultiStep) {
    schedule.gamma =
        reader.get_double("gamma", {.min = 0, .max = 1}, schedule.gamma);
  }
  if (schedule.decay == LrDecay::kStep) {
    schedule.step_size = reader.get_int("step_size", {.min = 1});
  }
  if (schedule.decay == LrDecay::kMultiStep) {
    schedule.milestones = reader.get_ints("milestones", {.min = 0});
  }
  if (schedule.decay == LrDecay::kWsd) {
    schedule.decay_steps = reader.get_int("decay_steps", {.min = 1});
  }
}

void read_training(const ConfigReader& reader, FinetuneConfig& config) {
  TrainerOptions& trainer = config.trainer;
  trainer.epochs = reader.get_int("epochs", {.min = 1}, 1);
  trainer.max_steps = reader.get_int("max_steps", {.min = 0}, 0);
  config.batch_size = reader.get_int("batch_size", {.min = 1}, 16);
  trainer.accumulate = reader.get_int("accumulate", {.min = 1}, 1);
  trainer.save_every = reader.get_int("save_every", {.min = 0}, 0);
  trainer.keep_last =
      static_cast<int>(reader.get_int("keep_last", {.min = 0, .max = 1000}, 2));
  trainer.resume = reader.get_bool("resume", false);
  trainer.clip_grad_norm = reader.get_double("clip_grad_norm", {.min = 0}, 0.0);
  config.seed = static_cast<uint64_t>(reader.get_int("seed", {.min = 0}, 0));
}

void read_sharding(const ConfigReader& reader, FinetuneConfig& config) {
  PagerOptions& sharding = config.engine.sharding;
  sharding.groups.min_group_numel = reader.get_int(
      "min_group_numel", {.min = 0}, sharding.groups.min_group_numel);
  sharding.prefetch_depth = static_cast<int>(reader.get_int(
      "prefetch_depth", {.min = 0, .max = 64}, sharding.prefetch_depth));
}

} // namespace

FinetuneConfig read_finetune_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  auto json = parse_json(read_text_file(file), file.string());
  for (const std::string& text : overrides) {
    apply_override(json, text);
  }
  const ConfigReader reader(std::move(json), file.string());
  FinetuneConfig config;
  reader.get_enum<int>("task", {{"text_classification", 0}});
  const auto model = reader.get_object("model");
  config.model_folder = model.get_string("folder");
  config.max_length = model.get_int("max_length", {.min = 8}, 128);
  const auto data = reader.get_object("data");
  config.train_file = data.get_string("train");
  config.heldout_file = data.get_string("heldout");
  config.columns.text = data.get_string("text_key", "text");
  config.columns.label = data.get_string("label_key", "label");
  read_optimizer(reader.get_object("optimizer"), config);
  read_schedule(reader.get_object("schedule"), config);
  read_training(reader.get_object("training"), config);
  read_sharding(reader.get_object("sharding"), config);
  config.trainer.run_folder = reader.get_object("output").get_string("folder");
  reader.finish();
  if (resolved != nullptr) {
    *resolved = reader.resolved();
  }
  return config;
}

} // namespace tessera
