// SPDX-License-Identifier: Apache-2.0
#include "train_language_model.h"

#include "training_run.h"

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/sharding/distributed_parameter.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/language_model_config.h"
#include "tessera/zoo/tasks/language_model_task.h"

#include <torch/utils.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

namespace tessera {

namespace {

/// Without memory until it is wrapped.
std::shared_ptr<zoo::Model> make_model(
    const LanguageModelConfig& config,
    ParallelRun& parallel) {
  if (!config.model_folder.empty()) {
    zoo::FromPretrainedOptions options;
    options.architecture = config.architecture;
    options.context = zoo::layer_context(parallel);
    options.lazy = true;
    return zoo::from_pretrained(config.model_folder, options);
  }
  const std::string origin = config.model_config.string();
  const nlohmann::json json =
      parse_json(read_text_file(config.model_config), origin);
  const auto model = lazy([&] {
    return zoo::from_config(
        json,
        {config.architecture, zoo::fresh_layer_context(parallel)},
        origin);
  });
  init_parameters(*model, config.seed);
  return model;
}

void print_result(
    const LanguageModelConfig& config,
    const TrainingSummary& summary,
    const std::optional<LanguageModelScore>& score) {
  const std::string folder = config.trainer.run_folder.string();
  std::printf(
      "%lld steps in %.0f s, %.0f tokens/s, last loss %.4f\n",
      static_cast<long long>(summary.steps),
      summary.seconds,
      summary.tokens_per_s,
      summary.last_loss);
  nlohmann::ordered_json result{
      {"steps", summary.steps},
      {"seconds", summary.seconds},
      {"tokens_per_s", summary.tokens_per_s},
      {"last_loss", summary.last_loss}};
  if (score) {
    std::printf(
        "held-out loss %.4f over %lld tokens (perplexity %.2f)\n",
        score->loss,
        static_cast<long long>(score->tokens),
        std::exp(score->loss));
    result["heldout_loss"] = score->loss;
    result["heldout_tokens"] = score->tokens;
  }
  std::printf(
      "run folder %s: config.json, metrics.jsonl, loss.svg, report.html, "
      "result.json, %s\n",
      folder.c_str(),
      exported_folders(config));
  write_file_atomically(
      config.trainer.run_folder / "result.json", result.dump(2) + "\n");
}

} // namespace

void train_language_model(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides) {
  nlohmann::ordered_json resolved;
  LanguageModelConfig config =
      read_language_model_config(file, overrides, &resolved);
  check(config.engine);
  const TokenFile train_tokens(config.train_file, config.token_type);
  std::optional<TokenFile> heldout_tokens;
  if (!config.heldout_file.empty()) {
    heldout_tokens.emplace(config.heldout_file, config.token_type);
    check_has_text(*heldout_tokens, config.max_length);
  }

  install_cpu_memory_counter();
  World& world = init_on(config.device);
  prepare_run_folder(world, config.trainer.run_folder, resolved);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  tell_layout(world, parallel);
  torch::manual_seed(config.seed); // fresh weights, alike on all ranks
  const auto model = make_model(config, parallel);
  check_language_model(*model, config.max_length);
  add_lora(config, world, *model);
  move_module(*model, world.device());
  model->set_recomputed_layers(config.checkpoint_layers.value_or(0));
  config.engine.parallel = parallel.mesh_if_given();
  config.trainer.parallel = &parallel;
  config.trainer.random_seed = config.seed;
  auto engine = wrap(model, config.engine);
  LanguageModelTask task(
      model,
      train_tokens,
      config.max_length,
      {parallel.batches(),
       config.batch_size,
       config.seed,
       parallel.one_batch()});
  if (world.rank() == 0) {
    log_info(
        "training on ",
        train_tokens.size(),
        " tokens in texts of ",
        config.max_length,
        ", ",
        steps_text(world, parallel, config, task));
  }
  model->train();
  const auto summary = train(world, engine, task, config.trainer);
  std::optional<LanguageModelScore> score;
  if (heldout_tokens) {
    score = evaluate_language_model(
        parallel,
        engine,
        *model,
        *heldout_tokens,
        config.max_length,
        config.batch_size);
  }
  export_model(config, world, engine, *model);
  if (world.rank() == 0) {
    print_result(config, summary, score);
  }
}

} // namespace tessera
