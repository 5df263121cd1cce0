// SPDX-License-Identifier: Apache-2.0
// Fine-tunes BERT-Large on a GPU with 11 GiB: float16 with loss scaling,
// sequences of 512 tokens, optimizer state on the host, and as many layers
// recomputed in backward as the budget requires.
//
//   finetune_bert_large [CONFIG] [key.path=value ...]
//
// CONFIG defaults to configs/finetune_bert_large.json. On a machine
// without a GPU it runs on the CPU, which suits a small model.

#include "memory_plan.h"

#include "tessera/engine/report/progress_line.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/memory/device_memory.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/model_task.h"
#include "tessera/zoo/models/pretrained.h"

#include <torch/utils.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace tessera;

void check_model_folder(const std::filesystem::path& folder) {
  TESSERA_CHECK(
      std::filesystem::exists(folder / "config.json"),
      "model.folder: '{}' has no config.json. Set model.folder=hf://google-bert/bert-large-uncased, or to the folder of another BERT model",
      folder.string());
}

int run(
    const std::string& config_file,
    const std::vector<std::string>& overrides) {
  tasks::TrainingConfig config = tasks::read_training_config(
      config_file, overrides, &tasks::kTextClassification);
  TESSERA_CHECK(
      !config.data.heldout.empty() && !config.is_regression(),
      "this example classifies and scores data.heldout; use `tessera train` for regression, or without held-out data");
  World& world = engine::init_on(config.device);
  check_model_folder(config.model_folder);
  std::filesystem::create_directories(config.trainer.run_folder);

  // No weights are in memory until the engine allocates its shards.
  torch::manual_seed(config.seed);
  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  const tasks::Task task =
      config.task->open(config, world, parallel, tasks::ModelState::kFirst);
  const auto& model = task.model;
  move_module(*model, world.device());
  const auto* encoder = dynamic_cast<const zoo::Encoder*>(model.get());
  TESSERA_CHECK(
      encoder != nullptr && encoder->stage().is_complete(),
      "model.folder: '{}' must contain a BERT model, and parallel.pipeline must be 1; use `tessera train` for other models and layouts",
      config.model_folder.string());
  const MemoryPlan plan(config, encoder->encoder_config(), world.device());
  config.engine.parallel = parallel.mesh_or_null();
  config.trainer.parallel = &parallel;
  config.engine.memory.activation_bytes = plan.least_activation_bytes();
  auto engine = wrap(model, config.engine);
  const int64_t layers = plan.checkpointed_layers(engine);
  zoo::Recomputation again = config.recomputation();
  again.layers = layers;
  model->recompute(again);
  if (world.rank() == 0) {
    log_info("{}", plan.summary(engine, layers));
  }

  config.trainer.random_seed = config.seed;
  tasks::ModelTask batches(
      task,
      engine,
      parallel,
      config.batch_size,
      config.seed,
      config.loader,
      config.trainer.accumulate);
  model->train();
  runtime::reset_peak_bytes(world.device());
  const auto summary = train(world, engine, batches, config.trainer);
  const int64_t peak = runtime::peak_bytes(world.device());
  // Before what may fail.
  zoo::save_pretrained(
      engine, *model, config.trainer.run_folder / "model", config.model_folder);
  const auto score =
      *tasks::evaluate(task, engine, parallel, config.batch_size);
  if (world.rank() == 0) {
    std::printf(
        "%lld steps, %.0f tokens/s, last loss %.4f, peak memory %s\n"
        "held-out accuracy %.1f %% of %lld samples; %s contains the log, "
        "report.html and model/\n",
        static_cast<long long>(summary.steps),
        summary.tokens_per_s,
        summary.last_loss,
        engine::format_bytes(peak).c_str(),
        100 * score.right,
        static_cast<long long>(score.examples),
        config.trainer.run_folder.c_str());
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  tessera::runtime::install_cpu_memory_counter();
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string config_file = "configs/finetune_bert_large.json";
  if (!arguments.empty() && arguments.front().find('=') == std::string::npos) {
    config_file = arguments.front();
    arguments.erase(arguments.begin());
  }
  try {
    return run(config_file, arguments);
  } catch (const c10::Error& error) {
    tessera::log_error("{}", error.what_without_backtrace());
  } catch (const std::exception& error) {
    tessera::log_error("{}", error.what());
  }
  return 1;
}
