// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/run_training.h"

#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/engine/option_agreement.h"
#include "tessera/engine/report/plot_ticks.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/engine/trainer/run_report.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/kernels/bfloat16_product.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/launch/rank_process.h"
#include "tessera/runtime/launch/stop_signals.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/tasks/best_checkpoint.h"
#include "tessera/tasks/model_task.h"
#include "tessera/tasks/run_changes.h"
#include "tessera/tasks/run_folder.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/tokenized_data.h"
#include "tessera/zoo/models/pretrained.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace tessera::tasks {

namespace {

/// Logs the layout of ranks if they divide the model.
void log_layout(const World& world, const ParallelRun& parallel) {
  if (world.rank() == 0 && parallel.batches().count < world.size()) {
    log_info("{}", parallel.mesh().table());
  }
}

/// The folders that export_model() writes, for the log.
const char* exported_names(const TrainingConfig& config) {
  if (!config.lora) {
    return "model/";
  }
  return config.lora->merge ? "adapter/, model/" : "adapter/";
}

/// What multiplies float32 matrices on the CPU, and what is faster.
std::string products_text() {
  std::string text = name_of(cpu_matmul());
  if (cpu_matmul() != CpuMatmul::kBfloat16 &&
      runtime::has_bfloat16_products()) {
    text += " (faster with rounded factors: cpu_matmul=bfloat16)";
  }
  return text;
}

/// Where and in which types the run computes, for the log and the report.
engine::RunFacts facts_of(
    const World& world,
    const TrainingConfig& config,
    const zoo::Model& model) {
  const auto parameters = model.parameters();
  const auto dtype = config.engine.precision.parameters.value_or(
      parameters.empty() ? at::kFloat : parameters.front().scalar_type());
  engine::RunFacts facts{
      {"device", world.device().str()},
      {"ranks", std::to_string(world.size())},
      {"threads per rank", std::to_string(at::get_num_threads())},
      {"dtype", c10::getDtypeNames(dtype).first}};
  if (world.device().is_cpu() && dtype == at::kFloat) {
    facts.emplace_back("products", products_text());
  }
  return facts;
}

/// Adds what rank 0 keeps in each memory tier, by purpose, as in the memory
/// table.
void add_memory(const Engine& engine, engine::RunFacts& facts) {
  for (size_t t = 0; t < kMemoryTierCount; ++t) {
    const auto tier = static_cast<MemoryTier>(t);
    const MemoryBytes& bytes = engine.planned_memory(tier);
    for (size_t p = 0; p < kMemoryPurposeCount; ++p) {
      if (bytes[p] != 0) {
        facts.emplace_back(
            formatted(
                "{} of rank 0 ({})",
                name_of(static_cast<MemoryPurpose>(p)),
                name_of(tier)),
            runtime::size_text(bytes[p]));
      }
    }
  }
}

/// "device cpu, ranks 2, ...".
std::string facts_text(const engine::RunFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) {
    text += (text.empty() ? "" : ", ") + name + " " + value;
  }
  return text;
}

/// "held-out exact match" of "heldout_exact_match".
std::string title_of(std::string name) {
  if (name.starts_with(engine::kHeldoutPrefix)) {
    name.replace(0, engine::kHeldoutPrefix.size(), "held-out ");
  }
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

/// Adds the held-out results to the report, and to the curves unless they are
/// in the line of the last step; if that fails, there is a warning.
void report_score(
    const TrainingConfig& config,
    const TrainingSummary& summary,
    const TaskScore& score) {
  const auto& folder = config.trainer.run_folder;
  engine::RunFacts facts = config.trainer.facts;
  nlohmann::ordered_json line{{"step", summary.steps}};
  for (const auto& [name, value] : score.values.items()) {
    if (value.is_number()) {
      facts.emplace_back(
          title_of(name),
          value.is_number_float() ? engine::fixed(value.get<double>(), 4)
                                  : value.dump());
      const std::string prefix(engine::kHeldoutPrefix);
      line[name.starts_with(prefix) ? name : prefix + name] = value;
    }
  }
  try {
    engine::write_run_report(folder, engine::read_metrics(folder), facts);
    if (!summary.last_score) {
      add_final_metrics(config.trainer, line);
    }
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

/// "N steps of M examples over R ranks", and how many examples fill no step. A
/// run that resumes has its own number of steps.
std::string steps_text(
    const World& world,
    const ParallelRun& parallel,
    const TrainingConfig& config,
    const TrainingTask& task) {
  const int64_t left_out =
      task.samples_per_epoch() -
      task.batches_per_epoch() * task.batch_size() * parallel.batches().count;
  return formatted(
      "{} of {} over {}{}",
      config.trainer.resume
          ? std::string("steps")
          : runtime::count_text(total_steps_of(config.trainer, task), "step"),
      runtime::count_text(
          config.batch_size * config.trainer.accumulate *
              parallel.batches().count,
          "example"),
      runtime::count_text(world.size(), "rank"),
      left_out > 0
          ? formatted(
                "; {} of {} {} left out of each epoch, others every time, as they fill no whole step: a smaller training.batch_size leaves out fewer",
                left_out,
                runtime::count_text(task.samples_per_epoch(), "example"),
                left_out == 1 ? "is" : "are")
          : "");
}

/// Says which parameters each entry of optimizer.parameters is for: a pattern
/// that is meant for other names may match a part of what it should.
void log_parameter_rules(
    const EngineOptions& options,
    const torch::nn::Module& model) {
  const OptimizerOptions& optimizer = options.optimizer;
  const auto parameters = model.named_parameters();
  const engine::OptimizerRules rules(optimizer, options.other_names);
  for (size_t i = 0; i < optimizer.parameters.size(); ++i) {
    int64_t count = 0;
    int64_t frozen = 0;
    std::string first;
    for (const auto& parameter : parameters) {
      if (rules.is_for(i, {parameter.key()})) {
        first = count == 0 ? parameter.key() : first;
        ++count;
        frozen += parameter.value().requires_grad() ? 0 : 1;
      }
    }
    log_info(
        "optimizer.parameters[{}] '{}': {} of {}{}{}",
        i,
        optimizer.parameters[i].pattern,
        count,
        runtime::count_text(
            static_cast<int64_t>(parameters.size()), "parameter"),
        count == 0 ? " of the first pipeline stage" : ", such as " + first,
        frozen == 0 ? "" : formatted("; {} are not trained", frozen));
  }
}

/// Warns of held-out data that are trained on, whose score says nothing about
/// other data.
void warn_of_shared_files(const TrainingConfig& config) {
  std::set<std::filesystem::path> trained;
  for (const auto& file : config.train_files()) {
    trained.insert(std::filesystem::weakly_canonical(file));
  }
  std::vector<std::string> shared;
  for (const auto& file : config.heldout_files()) {
    if (trained.contains(std::filesystem::weakly_canonical(file))) {
      shared.push_back("'" + file.string() + "'");
    }
  }
  if (!shared.empty()) {
    log_warning(
        "data.heldout: {} {} also in data.train, so that the score says nothing about data that the model has not seen; name other files in data.heldout",
        runtime::join_names(shared),
        shared.size() == 1 ? "is" : "are");
  }
}

/// @throws tessera::Error if the data do not fill a batch on each rank.
void check_fills_a_batch(
    const TrainingConfig& config,
    const ParallelRun& parallel,
    const zoo::DataSet& data) {
  const int64_t needed = config.batch_size * parallel.batches().count;
  const auto* rows = config.get_if<SupervisedOptions>();
  TESSERA_CHECK(
      static_cast<int64_t>(data.size()) >= needed,
      "training data: {} cannot fill one batch of {} on each of {}; the data are {}. Lower training.batch_size or provide more data{}.",
      runtime::count_text(static_cast<int64_t>(data.size()), "example"),
      config.batch_size,
      runtime::count_text(parallel.batches().count, "rank"),
      data.text(),
      rows != nullptr && rows->packed.value_or(true)
          ? "; where rows are packed, several in one sequence, such a sequence is an example: data.packed=false makes each row one"
          : "");
}

/// @throws tessera::Error, before the first step, if training.best_metric is
///     none of what the held-out data are scored by, or they are never scored.
void check_best_metric(const TrainingConfig& config, const Task& task) {
  if (config.trainer.best_metric == TrainerOptions().best_metric) {
    return; // all have a loss
  }
  TESSERA_CHECK(
      config.trainer.evaluate_every != 0,
      "training.best_metric is '{}', which is for training.evaluate_every; set that",
      config.trainer.best_metric);
  const zoo::DataSet& data = *task.heldout;
  zoo::Score unmeasured; // its report has all names
  unmeasured.examples = static_cast<int64_t>(data.size());
  if (data.measures_metric()) {
    unmeasured.metric = task.head->metric();
    if (const int64_t width = data.outputs_per_example(); width > 0) {
      unmeasured.outputs = at::zeros({unmeasured.examples, width}, at::kDouble);
    }
  }
  if (const zoo::ScoredPrompts* prompts = data.prompts()) {
    unmeasured.generated.resize(prompts->prompts.size());
  }
  TaskScore score = data.report(unmeasured);
  for (auto value = score.values.begin(); value != score.values.end();) {
    // Not of the model: numbers of examples, and what guessing gets.
    value = value->is_number_integer() || value.key() == "majority_baseline"
                ? score.values.erase(value)
                : std::next(value);
  }
  engine::BestScore(config.trainer.best_metric).add(score, /*step=*/0);
}

/// ", warm-up over 3 % of the steps", with the key of what is on by default.
/// @param steps of the run; nullopt: a resumed run has its own number.
std::string warmup_text(
    LrScheduleOptions schedule,
    const std::optional<int64_t>& steps) {
  if (schedule.decay == LrDecay::kOneCycle) {
    return ""; // it has its own
  }
  if (schedule.warmup_fraction > 0 && steps) {
    schedule.total_steps = *steps;
    if (warmup_steps_of(schedule) == 0) {
      return formatted(
          ", no warm-up ({:g} % of {} is less than one, schedule.warmup_fraction)",
          100 * schedule.warmup_fraction,
          runtime::count_text(*steps, "step"));
    }
  }
  if (schedule.warmup_fraction > 0) {
    return formatted(
        ", warm-up over {:g} % of the steps (schedule.warmup_fraction)",
        100 * schedule.warmup_fraction);
  }
  return schedule.warmup_steps > 0
             ? ", warm-up over " +
                   runtime::count_text(schedule.warmup_steps, "step")
             : std::string(", no warm-up");
}

/// Whether the learning rate is the default: a program may have set another one
/// after the configuration was read.
bool has_default_rate(const TrainingConfig& config) {
  const nlohmann::ordered_json::json_pointer lr("/optimizer/lr");
  return config.has_default_rate && config.resolved.contains(lr) &&
         config.resolved.at(lr) == config.engine.optimizer.lr;
}

/// How the weights are updated.
std::string optimization_text(
    const TrainingConfig& config,
    const TrainingTask& task) {
  const TrainerOptions& trainer = config.trainer;
  std::string decay;
  for (const auto& [name, value] : lr_decay_names()) {
    if (value == trainer.schedule.decay) {
      decay = name;
    }
  }
  return formatted(
      "optimizer {}, learning rate {:g}{}, decay {}{}, {}",
      name_of(config.engine.optimizer.rule),
      config.engine.optimizer.lr,
      !has_default_rate(config) ? ""
      : config.model_folder.empty()
          ? " (optimizer.lr, by default)"
          : formatted(
                " (optimizer.lr, by default for {} of model.folder)",
                config.lora ? "adapters" : "weights"),
      decay,
      warmup_text(
          trainer.schedule,
          trainer.resume ? std::optional<int64_t>()
                         : total_steps_of(trainer, task)),
      trainer.clip_grad_norm > 0
          ? formatted(
                "gradients clipped to norm {:g} (training.clip_grad_norm)",
                trainer.clip_grad_norm)
          : std::string("gradients not clipped"));
}

void log_stop(const TrainingConfig& config, const TrainingSummary& summary) {
  std::printf(
      "stopped by signal %s after step %lld of %lld\n",
      runtime::describe_signal(summary.stop_signal).c_str(),
      static_cast<long long>(summary.steps),
      static_cast<long long>(summary.total_steps));
  if (summary.checkpoint.empty()) {
    log_error(
        "the checkpoint of this step could not be saved; {}",
        newest_checkpoint_text(config.trainer.run_folder));
  } else {
    std::printf(
        "%s\n", newest_checkpoint_text(config.trainer.run_folder).c_str());
  }
}

void log_best(const TrainingConfig& config, const TrainingSummary& summary) {
  if (summary.stopped_early) {
    log_info(
        "ended after step {} of {}: {} scores without a better one (training.early_stop)",
        summary.steps,
        summary.total_steps,
        config.trainer.early_stop);
  }
  // A resumed run that scores no more knows that of the run before.
  if (summary.best_step > 0 && config.trainer.evaluate_every > 0) {
    log_info("best: {}", summary.best_text);
  }
  if (config.trainer.export_best && !summary.has_best_weights) {
    log_warning(
        "{}; the last step is exported",
        summary.best_step > 0
            ? std::string("the best checkpoint could not be saved")
            : formatted(
                  "there is no best checkpoint: no score of the held-out data was a finite {}",
                  config.trainer.best_metric));
  }
}

void log_training(const TrainingSummary& summary) {
  std::printf(
      "%s (%lld to %lld of %lld) in %.0f s, %.0f tokens/s, last loss "
      "%.4f\n",
      runtime::count_text(summary.new_steps, "step").c_str(),
      static_cast<long long>(summary.steps - summary.new_steps + 1),
      static_cast<long long>(summary.steps),
      static_cast<long long>(summary.total_steps),
      summary.seconds,
      summary.tokens_per_s,
      summary.last_loss);
}

/// Writes result.json; if that fails, there is a warning.
void write_result(const TrainingConfig& config, const TrainingResult& result) {
  const TrainingSummary& summary = result.summary;
  nlohmann::ordered_json values{{"steps", summary.steps}};
  if (summary.new_steps > 0) {
    values["seconds"] = summary.seconds;
    values["tokens_per_s"] = summary.tokens_per_s;
    values["last_loss"] = summary.last_loss;
    if (summary.skipped_steps > 0) {
      values["skipped_steps"] = summary.skipped_steps;
    }
  }
  if (result.score) {
    values.update(result.score->values);
  }
  try {
    runtime::write_file_atomically(
        config.trainer.run_folder / "result.json", values.dump(2) + "\n");
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

/// Calls `work` with a signal handler that says how to go on.
/// @param advice about what is saved, for a signal and for an error.
void after_training(
    const World& world,
    runtime::StopSignals& signals,
    const std::string& label,
    const std::string& advice,
    const std::function<void()>& work) {
  if (world.rank() == 0) {
    signals.end_at_once(
        formatted("tessera: interrupted while {}; {}\n", label, advice));
  } else {
    signals.end_at_once("");
  }
  try {
    work();
  } catch (const std::exception& error) {
    TESSERA_FAIL(
        "{} failed: {}\n  {}",
        label,
        runtime::text_of_exception(error),
        advice);
  }
}

/// The whole work after the last step.
void finish_run(
    const TrainingConfig& config,
    World& world,
    ParallelRun& parallel,
    Engine& engine,
    const Task& task,
    runtime::StopSignals& signals,
    TrainingResult& result) {
  const TrainingSummary& summary = result.summary;
  const auto& folder = config.trainer.run_folder;
  const ExportFolders exported = folders_in_run(config);
  const bool logs = world.rank() == 0;
  if (logs && summary.new_steps > 0) {
    log_training(summary);
    log_best(config, summary);
  }
  const auto averaged = averages_of_run(config, engine);
  after_training(
      world,
      signals,
      "exporting the model",
      summary.checkpoint.empty() && summary.new_steps > 0
          ? "the checkpoint of the last step could not be saved either; " +
                newest_checkpoint_text(folder)
          : newest_checkpoint_text(folder),
      [&] { export_model(config, engine, *task.model, exported); });
  if (logs) {
    write_result(config, result); // also if scoring fails
  }
  after_training(
      world,
      signals,
      "scoring the held-out data",
      formatted(
          "the trained model is in {}: score it with `tessera eval {}`",
          exported.text(),
          folder.string()),
      [&] {
        if (summary.last_score) {
          result.score = summary.last_score;
        } else if (task.heldout != nullptr) {
          result.score = task.heldout->report(
              *evaluate(task, engine, parallel, config.batch_size));
        }
      });
  if (logs) {
    write_result(config, result);
    if (result.score) {
      std::printf("held-out %s\n", result.score->text.c_str());
      report_score(config, summary, *result.score);
    }
    std::printf(
        "run folder %s: config.json, metrics.jsonl, loss.svg, report.html, "
        "result.json, checkpoints/, %s\n",
        folder.c_str(),
        exported_names(config));
  }
  // When it has returned, any rank may use the run's files.
  if (world.size() > 1) {
    world.new_communicator("end of the run")->barrier();
  }
}

/// Loads what `model.start_from` names, unless the run is resumed. Collective.
void start_from(
    const TrainingConfig& config,
    const World& world,
    Engine& engine,
    const zoo::Model& model) {
  const TrainerOptions& trainer = config.trainer;
  if (trainer.resume) {
    const auto resumed =
        engine::checkpoint_to_resume(trainer.run_folder, trainer.resume_from);
    if (resumed) {
      log_values_of_new_weights(model, *resumed);
      return;
    }
  }
  if (!config.start_from) {
    return;
  }
  const auto& path = config.start_from->path;
  const LoadWeightsReport report =
      zoo::load_weights_of(engine, model, path, config.start_from->weights);
  TESSERA_CHECK(
      !report.loaded.empty(),
      "model.start_from: {} has no tensor that fits the model:\n{}",
      path,
      report.text());
  if (world.rank() == 0) {
    log_info("model.start_from {}: {}", path, report.text());
  }
  if (world.rank() == 0 && !config.lr_range_test) {
    runtime::write_file_atomically(
        trainer.run_folder / "start_from.json", report.json() + "\n");
  }
}

/// scored_data() of rank 0. Collective.
ScoredData agreed_scored_data(
    const TrainingConfig& config,
    World& world,
    engine::JobAgreement& agreement) {
  ScoredData data;
  if (config.trainer.evaluate_every == 0) {
    return data;
  }
  agreement.from_rank_zero("reading the held-out data", [&] {
    data = scored_data(config);
    return 0;
  });
  const auto ranks = world.new_communicator("held-out data");
  for (std::string* text : {&data.name, &data.identity}) {
    *text = runtime::gather_texts(
                *ranks, *text, "the identity of the held-out data")
                .front();
  }
  return data;
}

TrainingResult test_rates(
    const TrainingConfig& config,
    World& world,
    Engine& engine,
    const Task& task,
    TrainingTask& batches) {
  start_from(config, world, engine, *task.model);
  task.model->train();
  runtime::StopSignals signals;
  TrainerOptions trainer = config.trainer;
  trainer.stop_signal = [&] { return signals.received(); };
  TrainingResult result;
  result.summary.stop_signal = 0;
  result.lr_range =
      lr_range_test(world, engine, batches, trainer, *config.lr_range_test);
  if (world.rank() == 0) {
    const LrRangeResult& range = *result.lr_range;
    const auto text = [](const std::optional<double>& lr) {
      return lr ? formatted("{:.2g}", *lr) : std::string("none");
    };
    std::printf(
        "learning rates: the loss falls most steeply at %s; a tenth of the "
        "best is %s%s\n%s/lr_range_test: lr_range_test.json, "
        "lr_range_test.svg, metrics.jsonl\n",
        text(range.steepest_lr).c_str(),
        text(range.tenth_of_best_lr).c_str(),
        range.has_diverged
            ? formatted(
                  "; it diverges after {}",
                  text(
                      range.points.empty() ? std::optional<double>()
                                           : range.points.back().lr))
                  .c_str()
            : "",
        trainer.run_folder.c_str());
  }
  return result;
}

/// Whether an earlier run has done all that this one was to do.
bool is_done(const TrainingConfig& config, const TrainingSummary& summary) {
  const auto& folder = config.trainer.run_folder;
  return summary.new_steps == 0 &&
         std::filesystem::exists(folder / "result.json");
}

} // namespace

namespace {

/// Keys in which ranks may differ: where their files are, and what changes no
/// number.
constexpr std::string_view kOfEachRank[] = {
    "data.train",
    "data.heldout",
    "data.loader",
    "data.check",
    "data.text.folder",
    "data.tokenizer",
    "data.mask.words",
    "model.folder",
    "model.config",
    "model.start_from.path",
    "model.lora.base_model",
    "model.checkpoint_layers",
    "model.checkpoint_attention",
    "distill.model.folder",
    "preference.reference.folder"};

bool is_of_each_rank(const std::string& key) {
  return std::any_of(
             std::begin(kOfEachRank),
             std::end(kOfEachRank),
             [&](std::string_view one) {
               return key.starts_with(one) &&
                      (key.size() == one.size() || key[one.size()] == '.');
             }) ||
         (key.starts_with("data.blend.") && key.ends_with(".path"));
}

/// Bytes of the files that every rank reads, wherever they are: the same data.
void add_data_sizes(const TrainingConfig& config, runtime::OptionTexts& texts) {
  if (config.task == &kLanguageModel && are_texts(config.data.train)) {
    return; // rank 0 alone reads them
  }
  const auto add = [&](const char* key, const auto& files_of) {
    std::string size;
    try {
      uint64_t bytes = 0;
      for (const std::filesystem::path& file : files_of()) {
        bytes += std::filesystem::is_directory(file)
                     ? 0
                     : std::filesystem::file_size(file);
      }
      size = std::to_string(bytes);
    } catch (const std::exception&) { // reading them says why
      size = "unknown, as they cannot be read,";
    }
    texts[formatted("{} (its bytes)", key)] = size;
  };
  add("data.train", [&] { return config.train_files(); });
  add("data.heldout", [&] { return config.heldout_files(); });
}

/// Ranks with other steps would wait for each other; with other data, or what
/// is made of them, they would train on without a word. wrap() compares the
/// options of the engine.
void check_same_configuration(World& world, const TrainingConfig& config) {
  if (world.size() == 1) {
    return;
  }
  runtime::OptionTexts texts;
  for (const char* part :
       {"data",
        "distill",
        "model",
        "parallel",
        "preference",
        "reward",
        "schedule",
        "training"}) {
    const auto found = config.resolved.find(part);
    if (found != config.resolved.end()) {
      const nlohmann::ordered_json flat = found->flatten();
      for (const auto& [path, value] : flat.items()) {
        std::string name = part + path;
        std::replace(name.begin(), name.end(), '/', '.');
        if (!is_of_each_rank(name)) {
          texts.emplace(std::move(name), value.dump());
        }
      }
    }
  }
  texts["task"] = config.task->name;
  texts["model.max_length"] = std::to_string(config.max_length);
  add_data_sizes(config, texts);
  engine::check_same_on_all_ranks(world, "configuration", texts);
}

} // namespace

TrainingResult run_training(TrainingConfig config) {
  TESSERA_CHECK(
      config.resolved.is_object(),
      "run_training: TrainingConfig::resolved, which describes the run, is empty; make the configuration by read_training_config()");
  check(config.engine);
  runtime::install_cpu_memory_counter();
  World& world = engine::init_on(config.device);
  check_same_configuration(world, config);
  if (world.rank() == 0) {
    warn_of_shared_files(config);
  }
  prepare_data(config, world, ModelState::kFirst);
  engine::JobAgreement agreement(world, "run folder");
  // Before a model is built, which may take long.
  RunFolder folder(config);
  config.trainer.restart_data =
      !config.lr_range_test &&
      agreement.from_rank_zero("checking the run folder", [&] {
        config.trainer.description = describe_run(config);
        return folder.check(config.trainer.description) ? 1 : 0;
      }) != 0;
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  log_layout(world, parallel);
  // newly initialized weights must be equal on all ranks
  torch::manual_seed(config.seed);
  Task task = config.task->open(config, world, parallel, ModelState::kFirst);
  // Before weights are read.
  check_fills_a_batch(config, parallel, *task.train);
  add_lora(config, world, *task.model);
  task.loss = loss_of_run(config, world, parallel, task);
  Engine engine = wrap_model(world, parallel, config, task.model);
  config.trainer.parallel = &parallel;
  config.trainer.random_seed = config.seed;
  ModelTask batches(
      task,
      engine,
      parallel,
      config.batch_size,
      config.seed,
      config.loader,
      config.trainer.accumulate,
      config.curriculum,
      config.max_length,
      config.loss_mean);
  config.trainer.facts = facts_of(world, config, *task.model);
  if (world.rank() == 0) {
    config.trainer.description["data"]["samples"] = task.train->size();
    log_info(
        "training on {}, {}",
        task.train->text(),
        steps_text(world, parallel, config, batches));
    log_info("{}", facts_text(config.trainer.facts));
    if (!config.lr_range_test) {
      log_info("{}", optimization_text(config, batches));
      log_parameter_rules(config.engine, *task.model);
    }
    add_memory(engine, config.trainer.facts);
  }
  TESSERA_CHECK(
      config.trainer.evaluate_every == 0 || task.heldout != nullptr,
      "training.evaluate_every is {}, but there are no held-out data; set data.heldout",
      config.trainer.evaluate_every);
  if (config.lr_range_test) {
    return test_rates(config, world, engine, task, batches);
  }
  check_best_metric(config, task);
  config.trainer.scored_data = agreed_scored_data(config, world, agreement);
  // Only now, so that a rejected run leaves no folder.
  agreement.from_rank_zero("preparing the run folder", [&] {
    folder.prepare();
    return 0;
  });
  start_from(config, world, engine, *task.model);
  task.model->train();
  runtime::StopSignals signals;
  config.trainer.stop_signal = [&] { return signals.received(); };
  TrainingResult result;
  const TrainingSummary& summary = result.summary;
  try {
    result.summary = train(world, engine, batches, config.trainer);
  } catch (const std::exception& error) {
    const std::string newest =
        newest_checkpoint_text(config.trainer.run_folder);
    TESSERA_FAIL(
        "{}{}",
        runtime::text_of_exception(error),
        newest.empty() ? "" : "\n  " + newest);
  }
  if (summary.stop_signal != 0) {
    if (world.rank() == 0) {
      log_stop(config, summary);
    }
    return result;
  }
  if (is_done(config, summary)) {
    if (world.rank() == 0) {
      std::printf(
          "nothing left to do: run folder %s has all %lld steps; for more, "
          "raise training.max_steps or training.epochs\n",
          config.trainer.run_folder.c_str(),
          static_cast<long long>(summary.steps));
    }
    return result;
  }
  finish_run(config, world, parallel, engine, task, signals, result);
  return result;
}

} // namespace tessera::tasks
