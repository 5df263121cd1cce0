// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/engine_config.h"

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/optim/streamed_update.h"

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

namespace {

/// Two numbers, at least 0 and below 1.
template <typename Options>
void read_betas(const runtime::ConfigReader& reader, Options& options) {
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
  const runtime::ConfigReader& reader;

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

UpdateRule read_rule(const runtime::ConfigReader& reader) {
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
    const runtime::ConfigReader& reader,
    OptimizerOptions& optimizer) {
  for (const runtime::ConfigReader& entry : reader.get_objects("parameters")) {
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

std::optional<at::ScalarType> read_dtype(
    const runtime::ConfigReader& reader,
    const std::string& key) {
  if (!reader.contains(key)) {
    return std::nullopt;
  }
  return reader.get_enum<at::ScalarType>(
      key,
      {{"float32", at::kFloat},
       {"bfloat16", at::kBFloat16},
       {"float16", at::kHalf}});
}

void read_optimizer(
    const runtime::ConfigReader& reader,
    OptimizerOptions& optimizer) {
  optimizer.rule = read_rule(reader);
  optimizer.lr = reader.get_double("lr", {.min = 0}, optimizer.lr);
  std::visit(RuleReader{reader}, optimizer.rule);
  optimizer.weight_decay = reader.get_double(
      "weight_decay",
      {.min = 0},
      engine::OptimizerRules(optimizer).settings_for({}).weight_decay);
  optimizer.hold_steps = reader.get_int("hold_steps", {.min = 0}, 0);
  const bool bfloat16_moments = reader.get_enum<bool>(
      "moment_dtype", {{"float32", false}, {"bfloat16", true}}, false);
  if (bfloat16_moments) {
    optimizer.moment_dtype = at::kBFloat16;
  }
  optimizer.stochastic_rounding =
      reader.get_bool("stochastic_rounding", optimizer.stochastic_rounding);
  optimizer.placement = reader.get_enum<StatePlacement>(
      "placement",
      {{"auto", StatePlacement::kAutomatic},
       {"device", StatePlacement::kWithParameters},
       {"host", StatePlacement::kHost},
       {"nvme", StatePlacement::kNvme}},
      optimizer.placement);
  optimizer.overlap = reader.get_enum<UpdateOverlap>(
      "overlap",
      {{"auto", UpdateOverlap::kAutomatic},
       {"off", UpdateOverlap::kOff},
       {"wait", UpdateOverlap::kWait},
       {"speculate", UpdateOverlap::kSpeculate}},
      optimizer.overlap);
  read_parameter_rules(reader, optimizer);
}

void read_sharding(
    const runtime::ConfigReader& reader,
    PagerOptions& sharding) {
  sharding.zero_stage = static_cast<int>(
      reader.get_int("zero_stage", {.min = 1, .max = 3}, sharding.zero_stage));
  sharding.shard_ranks = static_cast<int>(reader.get_int(
      "shard_ranks", {.min = 0, .max = 1 << 20}, sharding.shard_ranks));
  if (reader.contains("accumulation")) {
    sharding.accumulation = reader.get_enum<GradientAccumulation>(
        "accumulation",
        {{"reduce_each_backward", GradientAccumulation::kReduceEachBackward},
         {"keep_whole", GradientAccumulation::kKeepWhole}});
  }
  sharding.prefetch_depth = static_cast<int>(reader.get_int(
      "prefetch_depth", {.min = 0, .max = 64}, sharding.prefetch_depth));
  GroupPolicy& groups = sharding.groups;
  groups.min_group_numel =
      reader.get_int("min_group_numel", {.min = 0}, groups.min_group_numel);
  groups.max_group_numel =
      reader.get_int("max_group_numel", {.min = 0}, groups.max_group_numel);
  groups.block_types = reader.get_strings("block_types", groups.block_types);
  groups.block_paths = reader.get_strings("block_paths", groups.block_paths);
}

void read_precision(
    const runtime::ConfigReader& reader,
    PrecisionPolicy& precision) {
  precision.parameters = read_dtype(reader, "parameters");
  if (precision.parameters == at::kFloat) {
    precision.parameters.reset();
  }
  precision.gradients = read_dtype(reader, "gradients");
  precision.accumulate = read_dtype(reader, "accumulate");
  precision.buffers = read_dtype(reader, "buffers");
  precision.master_weights =
      reader.get_bool("master_weights", precision.master_weights);
  precision.norms_in_float32 =
      reader.get_bool("norms_in_float32", precision.norms_in_float32);
  precision.float32_modules =
      reader.get_strings("float32_modules", precision.float32_modules);
}

void read_loss_scale(
    const runtime::ConfigReader& reader,
    LossScaleOptions& scale) {
  const runtime::DoubleRange positive{.min = 0, .open_min = true};
  if (reader.contains("fixed")) {
    scale.fixed = reader.get_double("fixed", positive);
  }
  scale.initial = reader.get_double("initial", positive, scale.initial);
  scale.growth_interval =
      reader.get_int("growth_interval", {.min = 1}, scale.growth_interval);
  scale.minimum = reader.get_double("minimum", positive, scale.minimum);
}

/// Nothing: as there is room.
std::optional<MemoryTier> read_tier(
    const runtime::ConfigReader& reader,
    const std::string& key) {
  // The last one is no tier.
  const std::array tiers{
      MemoryTier::kDevice, MemoryTier::kHost, MemoryTier::kNvme};
  const auto choice = reader.get_enum<size_t>(
      key,
      {{"device", 0}, {"host", 1}, {"nvme", 2}, {"auto", tiers.size()}},
      tiers.size());
  return choice < tiers.size() ? std::optional(tiers[choice]) : std::nullopt;
}

void read_memory(const runtime::ConfigReader& reader, MemoryBudget& memory) {
  if (reader.contains("device_bytes")) {
    memory.device_bytes = reader.get_bytes("device_bytes", {.min = 1});
  }
  memory.activation_bytes =
      reader.get_bytes("activation_bytes", {.min = 0}, memory.activation_bytes);
  if (reader.contains("host_bytes")) {
    memory.host_bytes = reader.get_bytes("host_bytes", {.min = 0});
  }
  if (reader.contains("nvme_path")) {
    memory.nvme_path = reader.get_string("nvme_path");
  }
  if (reader.contains("nvme_bytes")) {
    memory.nvme_bytes = reader.get_bytes("nvme_bytes", {.min = 0});
  }
  memory.parameters = read_tier(reader, "parameters");
  memory.gradients = read_tier(reader, "gradients");
}

void read_offload(
    const runtime::ConfigReader& reader,
    OffloadOptions& offload) {
  offload.activations = reader.get_enum<OffloadActivations>(
      "activations",
      {{"off", OffloadActivations::kOff},
       {"blocks", OffloadActivations::kBlocks},
       {"auto", OffloadActivations::kAuto},
       {"all", OffloadActivations::kAll}},
      offload.activations);
  offload.min_tensor_bytes = reader.get_bytes(
      "min_tensor_bytes", {.min = 0}, offload.min_tensor_bytes);
  offload.prefetch_bytes =
      reader.get_bytes("prefetch_bytes", {.min = 0}, offload.prefetch_bytes);
  if (reader.contains("activation_host_bytes")) {
    offload.activation_host_bytes =
        reader.get_bytes("activation_host_bytes", {.min = 1});
  }
  offload.ratio = reader.get_double_or("ratio", "auto", {.min = 0, .max = 1});
  offload.stage_bytes = reader.get_bytes(
      "stage_bytes",
      {.min = engine::StreamedUpdate::kMinBytes},
      offload.stage_bytes);
}

} // namespace

EngineOptions read_engine_options(const runtime::ConfigReader& reader) {
  EngineOptions options;
  read_optimizer(reader.get_object("optimizer"), options.optimizer);
  read_sharding(reader.get_object("sharding"), options.sharding);
  read_precision(reader.get_object("precision"), options.sharding.precision);
  read_loss_scale(reader.get_object("loss_scale"), options.loss_scale);
  read_memory(reader.get_object("memory"), options.memory);
  read_offload(reader.get_object("offload"), options.offload);
  options.update_in_backward =
      reader.get_bool("update_in_backward", options.update_in_backward);
  return options;
}

} // namespace tessera
