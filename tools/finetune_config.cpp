// SPDX-License-Identifier: Apache-2.0
#include "finetune_config.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

namespace tessera {

namespace {

void read_optimizer(const ConfigReader& reader, FinetuneConfig& config) {
  OptimizerOptions& optimizer = config.engine.optimizer;
  reader.get_enum<int>("type", {{"adamw", 0}}, 0);
  AdamWOptions options;
  optimizer.lr = reader.get_double("lr", {.min = 0}, optimizer.lr);
  const auto betas = reader.get_doubles(
      "betas",
      {.min = 0, .max = 1, .open_max = true},
      std::vector<double>{options.beta1, options.beta2});
  if (betas.size() != 2) {
    reader.fail("betas", "expected two numbers");
  }
  options.beta1 = betas[0];
  options.beta2 = betas[1];
  options.eps =
      reader.get_double("eps", {.min = 0, .open_min = true}, options.eps);
  optimizer.weight_decay = reader.get_double("weight_decay", {.min = 0}, 0.01);
  optimizer.rule = options;
}

void read_schedule(const ConfigReader& reader, FinetuneConfig& config) {
  using Decay = LrScheduleOptions::Decay;
  LrScheduleOptions& schedule = config.trainer.schedule;
  schedule.decay = reader.get_enum<Decay>(
      "decay",
      {{"constant", Decay::kConstant}, {"linear", Decay::kLinear}},
      Decay::kLinear);
  schedule.warmup_steps = reader.get_int("warmup_steps", {.min = 0}, 0);
  schedule.peak_lr = config.engine.optimizer.lr;
}

void read_training(const ConfigReader& reader, FinetuneConfig& config) {
  TrainerOptions& trainer = config.trainer;
  trainer.epochs = reader.get_int("epochs", {.min = 1}, 1);
  trainer.max_steps = reader.get_int("max_steps", {.min = 0}, 0);
  config.batch_size = reader.get_int("batch_size", {.min = 1}, 16);
  trainer.accumulate = reader.get_int("accumulate", {.min = 1}, 1);
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
