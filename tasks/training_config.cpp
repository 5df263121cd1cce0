// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/training_config.h"

#include "tessera/engine/engine_config.h"
#include "tessera/engine/optim/optimizer.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/option_schema.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/hub/fetch.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/config_file.h"
#include "tessera/tasks/config_paths.h"
#include "tessera/tasks/foreign_keys.h"
#include "tessera/tasks/idle_keys.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/text/rows/file_patterns.h"
#include "tessera/zoo/adapters/lora_targets.h"
#include "tessera/zoo/models/registry.h"

#include <algorithm>
#include <mutex>
#include <set>

namespace tessera::tasks {

void visit_fields(runtime::OptionFields& fields, StartOptions& options) {
  LoadWeightsOptions& weights = options.weights;
  fields.field(
      runtime::required("path"),
      options.path,
      "a checkpoint of `tessera train`, or the folder of several (the newest one), saved with any layout of ranks: tensors have the names of the modules of the zoo, as `tessera inspect` lists them; or files of weights: safetensors, of torch.save, a Hugging Face folder, checkpoints of FSDP, DeepSpeed or Megatron-LM");
  fields.field(
      "only",
      weights.only,
      "load only parameters of this model of which a whole name, the model's or its checkpoint's, matches one of these regular expressions, such as `encoder\\..*`");
  fields.field(
      "except",
      weights.except,
      "leave parameters as they are of which a whole name matches one of these regular expressions");
  fields.objects(
      "rename",
      weights.rename_rules,
      "other names for tensors in the files; the first rule that matches decides");
  fields.field(
      "optimizer_state",
      weights.optimizer_state,
      "load the optimizer state of the loaded parameters too, from a checkpoint of `tessera train`; the learning rate and the number of steps are those of this run");
  fields.field(
      "strict",
      weights.strict,
      "refuse missing tensors, tensors that this model does not have, and other shapes; otherwise they are listed");
}

void visit_fields(runtime::OptionFields& fields, LoraOptions& options) {
  visit_fields(fields, options.adapter);
  fields.field(
      "lora_plus_ratio",
      options.lora_plus_ratio,
      {.min = 0, .open_min = true},
      "LoRA+: how many times `optimizer.lr` is the learning rate of B, and of what is trained of one dimension; of the latter, biases and weights of norms have no weight decay then. Rules in `optimizer.parameters` come after it");
  fields.field(
      "merge",
      options.merge,
      "also export `model/`, with the adapter merged into it");
}

void visit_model_source(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.field(
      "config",
      config.model_config,
      "instead of `folder`: a config.json whose model is newly initialized, with the same weights under any layout of ranks; see [models](../docs/models.md#a-newly-initialized-model)");
  fields.field(
      "architecture",
      config.architecture,
      "a class such as `GPT2LMHeadModel`, in place of config.json's");
}

void visit_path(
    runtime::OptionFields& fields,
    const runtime::OptionKey& key,
    std::vector<std::string>& names,
    const char* doc) {
  std::string path = names.empty() ? "" : names.front();
  fields.field(key, path, doc);
  names = path.empty() ? std::vector<std::string>() : std::vector{path};
}

std::vector<std::filesystem::path> one_path(
    const TrainingConfig& /*config*/,
    const std::vector<std::string>& names) {
  return {names.at(0)};
}

void visit_problem_type(
    runtime::OptionFields& fields,
    TrainingConfig& config,
    const std::vector<std::string>& types,
    const char* doc) {
  std::vector<std::pair<std::string, std::optional<std::string>>> choices;
  for (const std::string& type : types) {
    choices.emplace_back(type, type);
  }
  std::optional<std::string> problem;
  if (!config.problem_type.empty()) {
    problem = config.problem_type;
  }
  fields.choice("problem_type", problem, choices, doc);
  config.problem_type = problem.value_or("");
}

void finish_text_files(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  config.parallel.shapes_vary = true;
  if (config.model_folder.empty()) {
    reader.get_object("model").fail(
        "folder", "give the Hugging Face folder of a model");
  }
}

void check_model_source(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config) {
  const auto model = reader.get_object("model");
  if (config.model_folder.empty() == config.model_config.empty()) {
    model.fail(
        "folder",
        "set either this, to start from existing weights, or model.config, "
        "a config.json whose model starts from newly initialized weights");
  }
  // Plans need no weights.
  if (config.lora && config.model_folder.empty() &&
      are_for_training(config.hub_files)) {
    model.fail("lora", "an adapter needs existing weights: set model.folder");
  }
  if (!config.lora) {
    return;
  }
  if (!config.trained.empty() || !config.frozen.empty()) {
    model.fail(
        config.trained.empty() ? "freeze" : "train",
        "an adapter decides what is trained, and its files have no more: name "
        "modules in model.lora.modules_to_save, target_modules or "
        "exclude_modules");
  }
  const zoo::LoraConfig& adapter = config.lora->adapter;
  const bool is_pissa = adapter.init == zoo::LoraInit::kPissa;
  if (config.start_from && (adapter.use_dora || is_pissa)) {
    model.fail(
        "start_from",
        formatted(
            "its weights are loaded after the adapter has been computed from "
            "those of model.folder (model.lora.{}): give the former as "
            "model.folder",
            is_pissa ? "init=pissa" : "use_dora"));
  }
}

void visit_fields(runtime::OptionFields& fields, TrainingConfig& config) {
  fields.choice(
      runtime::required("task"),
      config.task,
      task_kinds(),
      "what is trained on; see [data](../docs/data.md)");
  visit_fields(fields, config.device);
  fields.group("model", "", [&] {
    fields.field(
        "folder",
        config.model_folder,
        "Hugging Face folder of a model of the zoo: for `text_classification` one with a sequence classifier, for `question_answering` one with a head for it, for `language_model` and `supervised` a language model, for `image_folder` one of images, for `examples` any; a head that it lacks altogether is newly initialized unless its `architectures` name it, any other missing weight is an error; a run folder stands for the model that the run exported. Its weights are trained with other defaults than new ones: `optimizer.lr` 5e-5, or 2e-4 with `lora`");
    fields.field(
        "strict",
        config.strict,
        "refuse a folder with weights that the model does not have; otherwise they are ignored, and listed in one line");
    fields.object(
        "start_from",
        config.start_from,
        "weights of another model or run, as far as they fit, that are loaded into this one before its first step; what was loaded, what was not and why is logged and written to `start_from.json` in the run folder");
    fields.object(
        "lora",
        config.lora,
        "train a LoRA adapter and the head instead of the whole model; the run folder gets `adapter/`, which PEFT loads");
    fields.field(
        "train",
        config.trained,
        "only the parameters are trained whose whole name one of these regular expressions matches, in the model, such as `layers.0.attention.query.bias`, or in its checkpoint; the others have no gradients and no optimizer state. By default all are trained");
    fields.field(
        "freeze",
        config.frozen,
        "parameters that are not trained, of those that `model.train` leaves; likewise");
    fields.field(
        "checkpoint_layers",
        config.checkpoint_layers,
        {.min = 0},
        "number of layers whose activations are recomputed in backward, by default 0 (`finetune_bert_large`: as few as fit)");
    fields.field(
        "checkpoint_attention",
        config.checkpoint_attention,
        "in the other layers, recompute what lies between attention's projections (scores, softmax, dropout): it saves memory where kernels keep attention weights, that is on the CPU with biases, or with `fused: off` and dropout, and not on CUDA");
    fields.field(
        "divide_checkpoints",
        config.divide_checkpoints,
        "of `checkpoint_layers`, each rank of `parallel.tensor` keeps its part of the inputs, and gathers them in backward; with `parallel.sequence` they are divided in any case");
    fields.object(
        "layer_drop",
        config.layer_drop,
        "progressive layer drop: training steps leave out layers, later ones and later steps more often");
    fields.object(
        "token_drop",
        config.token_drop,
        "random layerwise token dropping: middle layers get a random subset of the tokens, which grows over the steps");
    config.task->visit_model(fields, config);
  });
  fields.object(
      "distill",
      config.distill,
      "train on the outputs of another model, too; see [training](../docs/training.md#a-teacher)");
  if (config.task->visit_sections != nullptr) {
    config.task->visit_sections(fields, config);
  }
  visit_fields(fields, config.engine);
  fields.object("parallel", config.parallel, "");
  fields.object("schedule", config.trainer.schedule, "");
  fields.group("training", "", [&] {
    visit_fields(fields, config.trainer);
    fields.field(
        "batch_size",
        config.batch_size,
        {.min = 1},
        "samples per rank and micro-batch");
    fields.choice(
        "loss_mean",
        config.loss_mean,
        {{"labels", LossMean::kLabels},
         {"micro_batches", LossMean::kMicroBatches}},
        "where examples have different numbers of labels, as of tokens or packed pairs of answers, or rows have none: the loss of a step is the mean over all `labels` of its global batch, whatever the number of ranks and micro-batches; or over `micro_batches`, each the mean over its own labels");
    fields.field(
        "new_data",
        config.new_data,
        "a resumed run may have other training data; it starts at their first sample");
    fields.object(
        "curriculum",
        config.curriculum,
        "train on the beginnings of sequences first, for `language_model` (next tokens) and `text_classification`; see [training](../docs/training.md#short-sequences-first)");
    fields.object(
        "lr_range_test",
        config.lr_range_test,
        "instead of a run: raise the learning rate until the loss diverges, and suggest one; see [training](../docs/training.md#looking-for-a-learning-rate)");
    auto seed = static_cast<int64_t>(config.seed);
    fields.field(
        "seed",
        seed,
        {.min = 0},
        "seed of newly initialized weights, the order of samples, dropout and masks");
    config.seed = static_cast<uint64_t>(seed);
  });
  fields.group("output", "", [&] {
    fields.field(
        runtime::required("folder"),
        config.trainer.run_folder,
        "the run folder");
    fields.field(
        "overwrite",
        config.overwrite,
        "overwrite a run in `output.folder` that has checkpoints or an exported model");
    fields.field(
        "metrics",
        config.trainer.metrics,
        "files of the run folder that get the lines of the log: `jsonl` (metrics.jsonl, always written), `tensorboard`, `csv` (metrics.csv), `wandb` (a folder for `wandb sync`)");
  });
  fields.group("data", "", [&] {
    config.task->visit_data(fields, config);
    fields.object("loader", config.loader, "");
  });
}

namespace {

/// The tasks that have a key, "section.key".
std::vector<std::string> tasks_with(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& [name, kind] : task_kinds()) {
    TrainingConfig defaults(*kind);
    const auto rows = runtime::describe_list(runtime::list_of(defaults)).rows;
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) {
          return row.path == path;
        })) {
      names.push_back(name);
    }
  }
  return names;
}

/// The names of a choice, such as the types of optimizers, without which a task
/// has no key "section.key"; empty if it has none or always has it.
std::vector<std::string> choices_with(
    const std::string& path,
    const TaskKind& task) {
  std::vector<std::string> names;
  TrainingConfig defaults(task);
  for (const auto& row :
       runtime::describe_list(runtime::list_of(defaults)).rows) {
    if (row.path == path) {
      names.insert(names.end(), row.only_for.begin(), row.only_for.end());
    }
  }
  return names;
}

/// ConfigReader::finish(), where keys of other tasks, and of other choices than
/// those made, are named as such.
void finish_reading(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config) {
  std::string errors;
  for (const runtime::UnknownKey& key : reader.unknown_keys(foreign_keys())) {
    const bool is_foreign = !key.here.empty();
    const std::string& meant = is_foreign ? key.here : key.path;
    const auto choices = is_foreign ? std::vector<std::string>()
                                    : choices_with(key.path, *config.task);
    const auto tasks = tasks_with(meant);
    const bool is_of_others =
        !tasks.empty() &&
        std::find(tasks.begin(), tasks.end(), config.task->name) == tasks.end();
    errors += formatted("{}{}", errors.empty() ? "" : "\n", key.place());
    if (!choices.empty()) {
      errors += formatted(
          " is a key only for {}; remove it", runtime::join_names(choices));
    } else if (is_of_others) {
      errors += formatted(
          " is not a key of the task {}{}, but of {}; remove it",
          config.task->name,
          is_foreign ? formatted(", nor is '{}'", meant) : "",
          runtime::join_names(tasks));
    } else {
      errors += " is not a known key; " + key.remedy;
    }
  }
  TESSERA_CHECK(errors.empty(), "{}", errors);
}

/// The learning rates of published weights: that of transformers' Trainer, and
/// the usual one of adapters.
constexpr double kFineTuningRate = 5e-5;
constexpr double kLoraRate = 2e-4;

/// Whether each step has gradients whose norm is known before they are applied.
bool can_clip(const EngineOptions& engine) {
  const auto sends_momentum = [](const UpdateRule& rule) {
    return rule.optimizer().sends_momentum();
  };
  const auto& parameters = engine.optimizer.parameters;
  return !engine.update_in_backward && !sends_momentum(engine.optimizer.rule) &&
         std::none_of(parameters.begin(), parameters.end(), [&](const auto& p) {
           return p.rule && sends_momentum(*p.rule);
         });
}

/// Whether a learning rate that falls over the run follows, so that it has a
/// warm-up by default; the other decays are used as they are given.
bool has_default_warmup(LrDecay decay) {
  return decay == LrDecay::kLinear || decay == LrDecay::kCosine ||
         decay == LrDecay::kPolynomial || decay == LrDecay::kWsd;
}

/// How many tokens a sequence of the configured model may have, as its
/// config.json says; nullopt: any number, or it cannot be told.
std::optional<int64_t> positions_of(const TrainingConfig& config) {
  const std::filesystem::path file = config.model_folder.empty()
                                         ? config.model_config
                                         : config.model_folder / "config.json";
  std::error_code code;
  if (file.empty() || !std::filesystem::is_regular_file(file, code)) {
    return std::nullopt;
  }
  try {
    nlohmann::json json =
        runtime::parse_json(runtime::read_text_file(file), file.string());
    if (!config.architecture.empty() && json.is_object()) {
      json["architectures"] = {config.architecture};
    }
    return zoo::position_limit_in(json, file.string());
  } catch (const Error&) {
    return std::nullopt; // opening the model says what is wrong with it
  }
}

/// Sets defaults that depend on the model.
void finish_model_defaults(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  const auto model = reader.get_object("model");
  if (config.task->max_length > 0) {
    if (!model.contains("max_length")) {
      config.max_length = std::min(
          config.max_length, positions_of(config).value_or(config.max_length));
    }
    model.resolve("max_length", config.max_length);
  }
  const auto optimizer = reader.get_object("optimizer");
  config.has_default_rate = !optimizer.contains("lr");
  if (config.has_default_rate && !config.model_folder.empty()) {
    config.engine.optimizer.lr = config.lora ? kLoraRate : kFineTuningRate;
    optimizer.resolve("lr", config.engine.optimizer.lr);
  }
}

/// Turns off defaults that do not go with what is set.
void finish_defaults(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  TrainerOptions& trainer = config.trainer;
  const auto training = reader.get_object("training");
  if (!training.contains("clip_grad_norm") && !can_clip(config.engine)) {
    trainer.clip_grad_norm = 0;
    training.resolve("clip_grad_norm", trainer.clip_grad_norm);
  }
  const auto schedule = reader.get_object("schedule");
  if (!schedule.contains("warmup_fraction") &&
      (schedule.contains("warmup_steps") ||
       !has_default_warmup(trainer.schedule.decay))) {
    trainer.schedule.warmup_fraction = 0;
    schedule.resolve("warmup_fraction", trainer.schedule.warmup_fraction);
  }
  reader.run_check([&] { check(trainer.schedule); });
}

/// The names of the kinds of tasks whose sequences a curriculum may shorten.
std::string curriculum_tasks() {
  std::string names;
  for (const auto& [name, kind] : task_kinds()) {
    if (kind->takes_curriculum) {
      names += (names.empty() ? "" : " and ") + name;
    }
  }
  return names;
}

/// @throws tessera::Error on names that are none of the Hub.
void check_named(TrainingConfig& config) {
  std::vector<std::string> names{
      config.model_folder.string(), config.model_config.string()};
  for (const auto& data : {config.data.train, config.data.heldout}) {
    names.insert(names.end(), data.begin(), data.end());
  }
  for (const std::string& name : names) {
    if (runtime::is_hub_name(name)) {
      runtime::parse_hub_name(name);
    }
  }
  if (!runtime::is_hub_name(config.model_folder.native())) {
    config.model_folder = model_folder_of(config.model_folder);
  }
}

/// Makes local what is named "hf://...". The configuration of the run keeps the
/// commit of its model.
/// @return what adapters call the model.
std::string fetch_named(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  if (!are_fetched(config.hub_files)) {
    check_named(config);
    return config.model_folder.string();
  }
  const bool all = config.hub_files == HubFiles::kAll;
  const std::filesystem::path given = config.model_folder;
  config.model_folder = model_folder_of(runtime::local_path(given, all));
  config.model_config = runtime::local_path(config.model_config);
  if (all) {
    for (auto* const names : {&config.data.train, &config.data.heldout}) {
      for (std::string& name : *names) {
        name = runtime::local_path(name).string();
      }
    }
  }
  if (!runtime::is_hub_name(given.native())) {
    return config.model_folder.string();
  }
  const auto name = runtime::parse_hub_name(given.native());
  reader.get_object("model").resolve("folder", runtime::pinned(name).text());
  return name.repository;
}

/// Completes what has been read: run folders stand for their models.
void finish_fields(
    const runtime::ConfigReader& reader,
    TrainingConfig& config) {
  if (config.trainer.run_folder.empty()) {
    reader.get_object("output").fail(
        "folder", "name the folder of the run, e.g. output.folder=runs/first");
  }
  finish_defaults(reader, config);
  const std::string base = fetch_named(reader, config);
  finish_model_defaults(reader, config);
  if (config.lora) {
    zoo::LoraConfig& adapter = config.lora->adapter;
    if (adapter.base_model.empty()) {
      adapter.base_model = base;
    }
    // Its expressions, too; the architecture decides what they do not.
    reader.run_check([&] { zoo::LoraTargets(adapter, /*architecture=*/""); });
  }
  reader.run_check([&] { check(config.parallel); });
  if (config.engine.sharding.shard_ranks != 0 &&
      config.parallel.sizes != ParallelSizes()) {
    reader.get_object("sharding")
        .fail(
            "shard_ranks",
            "it cannot be combined with `parallel`, whose sizes replace it: set "
            "parallel.shard and parallel.data instead");
  }
  if (!config.trainer.resume_from.empty()) {
    config.trainer.resume = true;
  }
  if (config.trainer.resume && config.overwrite) {
    reader.get_object("output").fail(
        "overwrite",
        "it begins a new run, and training.resume continues the one that is there: set one of them");
  }
  reader.run_check([&] { metric_sinks(config.trainer); });
  if (config.trainer.evaluate_every == 0) {
    const auto needs_scores = [&](bool is_set, const char* key) {
      if (is_set) {
        reader.get_object("training")
            .fail(key, "it is for training.evaluate_every; set that");
      }
    };
    needs_scores(config.trainer.keep_best, "keep_best");
    needs_scores(config.trainer.export_best, "export_best");
    needs_scores(config.trainer.early_stop > 0, "early_stop");
  }
  if (config.lr_range_test) {
    reader.run_check([&] { check(*config.lr_range_test); });
  }
  if (config.curriculum) {
    reader.run_check([&] { check(*config.curriculum, config.max_length); });
    if (!config.task->takes_curriculum) {
      reader.get_object("training")
          .fail(
              "curriculum",
              "it is for the tasks " + curriculum_tasks() + "; leave it out");
    }
    config.parallel.shapes_vary = true;
  }
  if (config.distill) {
    reader.run_check([&] { check(*config.distill); });
    if (config.task->make_loss != nullptr) {
      reader.fail(
          "distill",
          formatted("the task {} has a loss of its own", config.task->name));
    }
  }
  if (config.trainer.ema_evaluate && config.engine.optimizer.ema_decay == 0) {
    reader.get_object("training")
        .fail(
            "ema_evaluate",
            "there are no averages of the weights: set optimizer.ema_decay, "
            "e.g. to 0.999");
  }
  if (config.engine.update_in_backward && config.trainer.clip_grad_norm != 0) {
    reader.get_object("training")
        .fail(
            "clip_grad_norm",
            "update_in_backward applies gradients before their norm is known: "
            "set one of them to false or 0");
  }
}

} // namespace

TrainingConfig::TrainingConfig(const TaskKind& kind)
    : task(&kind), task_options(kind.options()), max_length(kind.max_length) {
  trainer.clip_grad_norm = 1;
  trainer.schedule.warmup_fraction = 0.03;
}

namespace {

/// @param names of `data.train` or `data.heldout`.
std::vector<std::filesystem::path> data_files(
    const TrainingConfig& config,
    const std::vector<std::string>& names) {
  return config.task->data_files != nullptr
             ? config.task->data_files(config, names)
             : text::matching_files(names);
}

} // namespace

std::vector<std::filesystem::path> TrainingConfig::train_files() const {
  return data_files(*this, data.train);
}

std::vector<std::filesystem::path> TrainingConfig::heldout_files() const {
  return data.heldout.empty() ? std::vector<std::filesystem::path>()
                              : data_files(*this, data.heldout);
}

std::filesystem::path TrainingConfig::tokenizer_of_data() const {
  return task->tokenizer_of_data != nullptr ? task->tokenizer_of_data(*this)
                                            : std::filesystem::path();
}

namespace {

/// A search of plans reads a configuration many times.
void log_once(const std::vector<std::string>& lines) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  for (const std::string& line : lines) {
    if (is_log_rank_zero() && logged.insert(line).second) {
      log_warning("{}", line);
    }
  }
}

} // namespace

TrainingConfig read_training_config(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    const TaskKind* kind,
    HubFiles hub_files) {
  nlohmann::json given = nlohmann::json::object();
  const auto reader = runtime::read_config_file(
      file,
      overrides,
      [&given](nlohmann::json& root, const std::filesystem::path& source) {
        resolve_config_paths(root, source);
        nlohmann::json merged = root; // the file before extends this one
        merged.merge_patch(given);
        given = std::move(merged);
      });
  TrainingConfig config = read_training_config(reader, kind, hub_files);
  if (!is_run_folder(file.parent_path())) {
    log_once(dropped_keys(std::move(given), overrides));
    log_once(idle_keys(reader, config));
  }
  return config;
}

TrainingConfig read_training_config(
    const runtime::ConfigReader& reader,
    const TaskKind* kind,
    HubFiles hub_files) {
  const TaskKind* found = nullptr;
  reader.read([&](runtime::OptionFields& fields) {
    fields.choice(runtime::required("task"), found, task_kinds(), "");
  });
  if (kind != nullptr && kind != found) {
    reader.fail("task", formatted("this program is for \"{}\"", kind->name));
  }
  TrainingConfig config(*found);
  runtime::read_fields(reader, config);
  config.hub_files = hub_files;
  finish_fields(reader, config);
  config.task->finish(reader, config);
  finish_reading(reader, config);
  config.resolved = reader.resolved();
  return config;
}

} // namespace tessera::tasks
