// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/training_config.h"

#include "tessera/engine/engine_config.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/zoo/tasks/foreign_keys.h"
#include "tessera/zoo/tasks/run_folder.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

namespace {

void read_schedule(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  LrScheduleOptions& schedule = config.trainer.schedule;
  schedule.decay = reader.get_enum(
      "decay", lr_decay_names(), std::optional(LrDecay::kLinear));
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

void read_training(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  TrainerOptions& trainer = config.trainer;
  trainer.epochs = reader.get_int("epochs", {.min = 1}, 1);
  trainer.max_steps = reader.get_int("max_steps", {.min = 0}, 0);
  config.batch_size = reader.get_int("batch_size", {.min = 1}, 16);
  trainer.accumulate = reader.get_int("accumulate", {.min = 1}, 1);
  trainer.log_every = reader.get_int("log_every", {.min = 1}, 1);
  trainer.step_timing = reader.get_bool("step_timing", true);
  trainer.save_every = reader.get_int("save_every", {.min = 0}, 0);
  trainer.save_minutes =
      reader.get_double("save_minutes", {.min = 0}, trainer.save_minutes);
  trainer.save_last = reader.get_bool("save_last", true);
  trainer.keep_last =
      static_cast<int>(reader.get_int("keep_last", {.min = 0, .max = 1000}, 2));
  trainer.resume_from = reader.get_string("resume_from", "");
  trainer.resume =
      reader.get_bool("resume", false) || !trainer.resume_from.empty();
  config.new_data = reader.get_bool("new_data", false);
  trainer.clip_grad_norm = reader.get_double("clip_grad_norm", {.min = 0}, 0.0);
  config.seed = static_cast<uint64_t>(reader.get_int("seed", {.min = 0}, 0));
}

} // namespace

runtime::ConfigReader open_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides) {
  return {
      runtime::parse_json(runtime::read_text_file(file), file.string()),
      file.string(),
      overrides};
}

void finish_config(
    const runtime::ConfigReader& reader,
    nlohmann::ordered_json* resolved) {
  reader.finish(foreign_keys());
  if (resolved != nullptr) {
    *resolved = reader.resolved();
  }
}

void read_task(const runtime::ConfigReader& reader, TaskKind expected) {
  const auto task = reader.get_enum<TaskKind>(
      "task",
      {{"text_classification", TaskKind::kTextClassification},
       {"language_model", TaskKind::kLanguageModel},
       {"examples", TaskKind::kExamples}});
  if (task != expected) {
    reader.fail(
        "task",
        expected == TaskKind::kTextClassification
            ? "this program is for \"text_classification\""
        : expected == TaskKind::kLanguageModel
            ? "this program is for \"language_model\""
            : "this program is for \"examples\"");
  }
}

std::string read_problem_type(
    const runtime::ConfigReader& model,
    bool multi_label,
    const std::string& fallback) {
  std::vector<std::pair<std::string, std::string>> choices;
  for (const char* name : {"single_label_classification", "regression"}) {
    choices.emplace_back(name, name);
  }
  if (multi_label) {
    const char* const name = "multi_label_classification";
    choices.emplace_back(name, name);
  }
  if (fallback.empty() && !model.contains("problem_type")) {
    return fallback;
  }
  return model.get_enum<std::string>(
      "problem_type",
      choices,
      fallback.empty() ? std::nullopt : std::optional(fallback));
}

void read_model_source(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  const auto model = reader.get_object("model");
  config.model_config = model.get_string("config", "");
  if (config.model_folder.empty() == config.model_config.empty()) {
    model.fail(
        "folder",
        "set either this, to start from existing weights, or model.config, "
        "a config.json whose model starts from newly initialized weights");
  }
  if (config.lora && config.model_folder.empty()) {
    model.fail("lora", "an adapter needs existing weights: set model.folder");
  }
  config.architecture = model.get_string("architecture", "");
}

void read_training_config(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  config.device = engine::read_device(reader);
  const auto model = reader.get_object("model");
  config.model_folder = model_folder_of(model.get_string("folder", ""));
  config.strict = model.get_bool("strict", config.strict);
  config.lora = read_lora_options(model);
  if (config.lora) {
    config.lora->adapter.base_model = config.model_folder.string();
  }
  if (model.contains("checkpoint_layers")) {
    config.checkpoint_layers = model.get_int("checkpoint_layers", {.min = 0});
  }
  config.engine = read_engine_options(reader);
  config.parallel = read_parallel_options(reader);
  if (config.engine.sharding.shard_ranks != 0 &&
      config.parallel.sizes != ParallelSizes()) {
    reader.get_object("sharding")
        .fail(
            "shard_ranks",
            "it cannot be combined with `parallel`, whose sizes replace it: set "
            "parallel.shard and parallel.data instead");
  }
  read_schedule(reader.get_object("schedule"), config);
  read_training(reader.get_object("training"), config);
  const auto output = reader.get_object("output");
  config.trainer.run_folder = output.get_string("folder");
  config.overwrite = output.get_bool("overwrite", false);
  if (config.engine.update_in_backward && config.trainer.clip_grad_norm != 0) {
    reader.get_object("training")
        .fail(
            "clip_grad_norm",
            "update_in_backward applies gradients before their norm is known: "
            "set one of them to false or 0");
  }
}

} // namespace tessera::zoo
