// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/run_model.h"

#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/comm/pattern_use.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/formats/config_fields.h"
#include "tessera/zoo/formats/hf_folder_writer.h"
#include "tessera/zoo/formats/model_center.h"
#include "tessera/zoo/models/pretrained.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace tessera::tasks {

namespace fs = std::filesystem;

void log_values_of_new_weights(
    const zoo::Model& model,
    const fs::path& origin) {
  if (!model.newly_initialized().empty() && is_log_rank_zero()) {
    log_info(
        "the weights that were newly initialized take the values of {}",
        origin.string());
  }
}

std::function<bool(const zoo::TiedHead&)> unties_of(
    const TrainingConfig& config) {
  return config.lora ? unties_of(config.lora->adapter)
                     : std::function<bool(const zoo::TiedHead&)>();
}

namespace {

zoo::FromPretrainedOptions lazy_options(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  zoo::FromPretrainedOptions options;
  options.strict = config.strict;
  options.context = context;
  options.lazy = true;
  options.unties = unties_of(config);
  return options;
}

} // namespace

std::shared_ptr<zoo::Model> pretrained_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context,
    zoo::WantedHead head) {
  zoo::FromPretrainedOptions options = lazy_options(config, context);
  options.head = std::move(head);
  return zoo::from_pretrained(config.model_folder, options);
}

std::shared_ptr<zoo::Model> pretrained_model(
    const TrainingConfig& config,
    const zoo::LayerContext& context) {
  zoo::FromPretrainedOptions options = lazy_options(config, context);
  options.architecture = config.architecture;
  options.config = class_fields(config.classes, config.problem_type);
  options.fresh_heads = !options.config.empty();
  options.class_order = config.class_order;
  return zoo::from_pretrained(config.model_folder, options);
}

zoo::LayerContext model_context(
    const TrainingConfig& config,
    ParallelRun& parallel) {
  return config.model_folder.empty() ? zoo::fresh_layer_context(parallel)
                                     : zoo::layer_context(parallel);
}

std::shared_ptr<zoo::Model> configured_model(
    const TrainingConfig& config,
    ParallelRun& parallel) {
  if (!config.model_folder.empty()) {
    return pretrained_model(config, model_context(config, parallel));
  }
  const std::string origin = config.model_config.string();
  nlohmann::json json =
      runtime::parse_json(runtime::read_text_file(config.model_config), origin);
  json.update(class_fields(config.classes, config.problem_type));
  zoo::FromConfigOptions options{
      config.architecture, model_context(config, parallel)};
  options.record = std::make_shared<zoo::FieldRecord>();
  const auto model =
      lazy([&] { return zoo::from_config(json, options, origin); });
  if (!zoo::is_model_center(json)) {
    zoo::check_unread_fields(json, origin, *options.record);
  }
  init_parameters(*model, config.seed);
  return model;
}

namespace {

/// zoo::with_new_modules() of all pipeline stages. Collective.
zoo::LoraConfig adapter_of_run(
    const TrainingConfig& config,
    World& world,
    const zoo::Model& model) {
  zoo::LoraConfig adapter = config.lora->adapter;
  if (!model.names().is_part) {
    return with_new_modules(model, adapter);
  }
  auto& saved = adapter.modules_to_save;
  const nlohmann::json here = with_new_modules(model, adapter).modules_to_save;
  const auto ranks = world.new_communicator("adapters of pipeline stages");
  for (const std::string& text : runtime::gather_texts(
           *ranks, here.dump(), "the newly initialized modules of each rank")) {
    for (const nlohmann::json& name : nlohmann::json::parse(text)) {
      if (std::find(saved.begin(), saved.end(), name) == saved.end()) {
        saved.push_back(name);
      }
    }
  }
  return adapter;
}

} // namespace

void add_lora(const TrainingConfig& config, World& world, zoo::Model& model) {
  if (!config.lora) {
    return;
  }
  const auto layers =
      zoo::apply_lora(model, adapter_of_run(config, world, model), config.seed);
  if (world.rank() != 0) {
    return;
  }
  int64_t trained = 0;
  int64_t all = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  log_info(
      "LoRA of rank {} in {} layers: {} of {} parameters are trained on this rank",
      config.lora->adapter.r,
      layers.size(),
      trained,
      all);
}

OtherNames checkpoint_names(const zoo::Model& model) {
  return (zoo::has_lora(model) ? zoo::lora_names(model)
                               : zoo::WeightNames(model, model.names()))
      .by_parameter();
}

void add_lora_rates(
    const TrainingConfig& config,
    OptimizerOptions& options,
    const zoo::Model& model) {
  if (!config.lora || config.lora->lora_plus_ratio == 1) {
    return;
  }
  const auto rules = lora_plus_rules(model, config.lora->lora_plus_ratio);
  options.parameters.insert(
      options.parameters.begin(), rules.begin(), rules.end());
}

std::vector<runtime::NamePatterns> freeze_parameters(
    const TrainingConfig& config,
    const zoo::Model& model) {
  if (config.trained.empty() && config.frozen.empty()) {
    return {};
  }
  const OtherNames others = checkpoint_names(model);
  runtime::NamePatterns trained("model.train", config.trained);
  runtime::NamePatterns frozen("model.freeze", config.frozen);
  const auto matches = [&](runtime::NamePatterns& patterns,
                           const std::string& name) {
    bool found = false;
    for (const auto& one : runtime::with_other_names({name}, others)) {
      found = patterns.first_match(one).has_value() || found;
    }
    return found;
  };
  bool any = false;
  for (const auto& item : model.named_parameters()) {
    const bool is_chosen =
        config.trained.empty() || matches(trained, item.key());
    const bool is_trained = is_chosen && !matches(frozen, item.key());
    item.value().set_requires_grad(is_trained && item.value().requires_grad());
    any = any || is_trained;
  }
  if (!model.names().is_part) {
    trained.check_all_used();
    frozen.check_all_used();
  }
  TESSERA_CHECK(
      any || model.names().is_part,
      "model.train and model.freeze leave no parameter to train; change them");
  return {std::move(trained), std::move(frozen)};
}

Engine wrap_model(
    World& world,
    ParallelRun& parallel,
    TrainingConfig& config,
    const std::shared_ptr<zoo::Model>& model) {
  const auto& types = config.engine.precision;
  if (world.rank() == 0 && world.device().is_cpu() &&
      types.parameters == at::kHalf) {
    log_warning(
        "precision.parameters is float16 on a CPU, where LibTorch computes in it many times slower than in bfloat16 or float32.");
  }
  move_module(*model, world.device());
  model->recompute(config.recomputation());
  if (config.layer_drop) {
    model->drop_layers(*config.layer_drop);
  }
  if (config.token_drop) {
    model->drop_tokens(*config.token_drop);
  }
  config.engine.parallel = parallel.mesh_or_null();
  const auto patterns = freeze_parameters(config, *model);
  if (!patterns.empty() && model->names().is_part) {
    const auto ranks = world.new_communicator("parameters of pipeline stages");
    for (const runtime::NamePatterns& of_key : patterns) {
      check_used_on_any_rank(of_key, *ranks);
    }
  }
  config.engine.other_names = checkpoint_names(*model);
  EngineOptions options = config.engine;
  add_lora_rates(config, options.optimizer, *model);
  return {world, model, std::move(options)};
}

std::unique_ptr<BatchLoss> loss_of_run(
    TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    const Task& task,
    const MakeFrozenModel& make) {
  if (config.task->make_loss != nullptr) {
    return config.task->make_loss(config, world, parallel, task, make);
  }
  if (!config.distill) {
    return nullptr;
  }
  return std::make_unique<DistillationLoss>(
      *config.distill,
      *task.model,
      *task.head,
      std::make_unique<FrozenModel>(
          config.distill->model,
          "the teacher (distill.model)",
          world,
          parallel,
          config,
          make));
}

void freeze(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
}

std::string ExportFolders::text() const {
  const std::string both = adapter.empty() || model.empty() ? "" : ", ";
  return adapter.string() + both + model.string();
}

ExportFolders folders_in_run(const TrainingConfig& config) {
  const auto& folder = config.trainer.run_folder;
  ExportFolders folders{folder / "model", folder / "adapter"};
  if (!config.lora) {
    folders.outdated = std::exchange(folders.adapter, {});
  } else if (!config.lora->merge) {
    folders.outdated = std::exchange(folders.model, {});
  }
  return folders;
}

namespace {

/// A tokenizer that is copied after a folder has been replaced. What is in that
/// folder itself is copied beside it first.
class KeptTokenizer {
 public:
  KeptTokenizer(const fs::path& source, const fs::path& replaced)
      : source_(source) {
    std::error_code code;
    if (fs::equivalent(source, replaced, code)) {
      source_ = replaced.string() + ".tokenizer";
      zoo::copy_tokenizer(source, source_);
      is_copy_ = true;
    }
  }
  ~KeptTokenizer() {
    if (is_copy_) {
      std::error_code ignored;
      runtime::remove_tree(source_, ignored);
    }
  }
  KeptTokenizer(const KeptTokenizer&) = delete;
  KeptTokenizer& operator=(const KeptTokenizer&) = delete;

  void copy_to(const fs::path& folder) const {
    zoo::copy_tokenizer(source_, folder);
  }

 private:
  fs::path source_;
  bool is_copy_ = false;
};

} // namespace

std::optional<EmaScope> averages_of_run(
    const TrainingConfig& config,
    Engine& engine) {
  if (!config.trainer.ema_evaluate) {
    return std::nullopt;
  }
  TESSERA_CHECK(
      engine.ema_steps() > 0,
      "training.ema_evaluate is true, but the run has no averages of the weights, which begin with its first step under optimizer.ema_decay; set training.ema_evaluate=false");
  return engine.ema();
}

namespace {

/// Names the tokenizer's special tokens in the config.json of a model that was
/// newly initialized, where that names none, and in generation_config.json:
/// transformers would take those of the tokenizer that the model's family was
/// published with.
void add_special_tokens(const fs::path& folder) {
  if (!zoo::has_tokenizer(folder)) {
    return;
  }
  const text::Tokenizer tokenizer = text::Tokenizer::from_folder(folder);
  const fs::path file = folder / "config.json";
  auto config = nlohmann::ordered_json::parse(runtime::read_text_file(file));
  nlohmann::ordered_json generation{{"_from_model_config", true}};
  for (const char* name : {"bos_token", "eos_token", "pad_token"}) {
    const std::string key = std::string(name) + "_id";
    const auto id = tokenizer.special_id(name);
    if (id && *id < config.value("vocab_size", INT64_MAX) &&
        (!config.contains(key) || config[key].is_null())) {
      config[key] = *id;
    }
    if (config.contains(key) && !config[key].is_null()) {
      generation[key] = config[key];
    }
  }
  runtime::write_file_atomically(file, config.dump(2) + "\n");
  if (const fs::path generates = folder / "generation_config.json";
      !fs::exists(generates)) {
    runtime::write_file_atomically(generates, generation.dump(2) + "\n");
  }
}

} // namespace

namespace {

/// Whether a path in a configuration is that of the folder or of a file in it.
bool names_file_in(const nlohmann::json& value, const fs::path& folder) {
  if (value.is_string() && value != "") {
    std::error_code code;
    const auto inside = fs::relative(value.get<std::string>(), folder, code);
    return !code && !inside.empty() && *inside.begin() != "..";
  }
  return value.is_structured() &&
         std::any_of(value.begin(), value.end(), [&](const auto& one) {
           return names_file_in(one, folder);
         });
}

/// Removes what an earlier run exported, unless this one was made from it.
void remove_outdated(const TrainingConfig& config, const fs::path& folder) {
  if (!fs::exists(folder)) {
    return;
  }
  if (names_file_in(config.resolved, folder) ||
      names_file_in(config.model_folder.string(), folder)) {
    log_warning(
        "'{}' is no result of this run, which has been made from it; commands that are given the run folder may take it for one",
        folder.string());
    return;
  }
  runtime::remove_tree(folder);
  log_info("removed '{}', which an earlier run had exported", folder.string());
}

} // namespace

void export_model(
    const TrainingConfig& config,
    Engine& engine,
    zoo::Model& model,
    const ExportFolders& folders) {
  if (is_log_rank_zero() && !folders.outdated.empty()) {
    remove_outdated(config, folders.outdated);
  }
  if (!folders.adapter.empty()) {
    zoo::save_lora(engine, model, folders.adapter);
  }
  if (folders.model.empty()) {
    return;
  }
  fs::path source = config.tokenizer_of_data();
  if (source.empty()) {
    source = folders.tokenizer;
  }
  if (zoo::has_tokenizer(config.model_folder)) {
    source.clear(); // it is copied with the model's other files
  }
  // The folder may itself be the source, and is replaced.
  std::optional<KeptTokenizer> kept;
  if (is_log_rank_zero() && !source.empty()) {
    kept.emplace(source, folders.model);
  }
  if (config.lora) {
    zoo::save_merged(engine, model, folders.model, config.model_folder);
  } else {
    zoo::save_pretrained(engine, model, folders.model, config.model_folder);
  }
  if (kept) {
    kept->copy_to(folders.model);
  }
  if (!is_log_rank_zero()) {
    return;
  }
  if (config.model_folder.empty()) {
    add_special_tokens(folders.model);
  }
  if (config.task->finish_export != nullptr) {
    config.task->finish_export(config, model, folders.model);
  }
}

} // namespace tessera::tasks
