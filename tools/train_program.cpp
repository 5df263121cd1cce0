// SPDX-License-Identifier: Apache-2.0
// `tessera train CONFIG [key.path=value ...]`: trains a classifier of texts, or
// a language model.

#include "program_main.h"
#include "train_language_model.h"
#include "training_run.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/text_classification_task.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <torch/utils.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace tessera {

namespace {

void print_result(
    const FinetuneConfig& config,
    const TrainingSummary& summary,
    const ClassificationScore& score,
    double majority) {
  const std::string folder = config.trainer.run_folder.string();
  std::printf(
      "%lld steps in %.0f s, %.0f tokens/s, last loss %.4f\n"
      "held-out accuracy %.1f %% of %lld texts "
      "(always guessing the most frequent label: %.1f %%)\n"
      "run folder %s: config.json, metrics.jsonl, loss.svg, report.html, "
      "result.json, %s\n",
      static_cast<long long>(summary.steps),
      summary.seconds,
      summary.tokens_per_s,
      summary.last_loss,
      100 * score.accuracy,
      static_cast<long long>(score.examples),
      100 * majority,
      folder.c_str(),
      exported_folders(config));
  const nlohmann::ordered_json result{
      {"steps", summary.steps},
      {"seconds", summary.seconds},
      {"tokens_per_s", summary.tokens_per_s},
      {"heldout_accuracy", score.accuracy},
      {"heldout_loss", score.loss},
      {"heldout_examples", score.examples},
      {"majority_baseline", majority}};
  write_file_atomically(
      config.trainer.run_folder / "result.json", result.dump(2) + "\n");
}

void train_classifier(
    const std::string& file,
    const std::vector<std::string>& overrides) {
  nlohmann::ordered_json resolved;
  FinetuneConfig config = read_finetune_config(file, overrides, &resolved);
  check(config.engine);

  install_cpu_memory_counter();
  World& world = init_on(config.device);
  prepare_run_folder(world, config.trainer.run_folder, resolved);
  const auto tokenizer = BertTokenizer::from_folder(config.model_folder);
  const auto train_texts =
      read_labelled_texts(config.train_file, config.columns);
  const auto labels = labels_of(train_texts);
  const auto train_examples =
      encode_labelled_texts(train_texts, labels, tokenizer, config.max_length);
  const auto heldout_examples = encode_labelled_texts(
      read_labelled_texts(config.heldout_file, config.columns),
      labels,
      tokenizer,
      config.max_length);

  ParallelRun parallel(
      world, config.parallel, static_cast<int>(config.trainer.accumulate));
  tell_layout(world, parallel);
  torch::manual_seed(config.seed); // the classifier, alike on all ranks
  const auto model = lazy_text_classifier(
      config.model_folder, labels, zoo::layer_context(parallel));
  add_lora(config, world, *model);
  move_module(*model, world.device());
  model->set_recomputed_layers(config.checkpoint_layers.value_or(0));
  config.engine.parallel = parallel.mesh_if_given();
  config.trainer.parallel = &parallel;
  auto engine = wrap(model, config.engine);
  config.trainer.random_seed = config.seed;
  TextClassificationTask task(
      model,
      tokenizer,
      train_examples,
      {parallel.batches(),
       config.batch_size,
       config.seed,
       parallel.one_batch()});
  if (world.rank() == 0) {
    log_info(
        "training on ",
        train_examples.size(),
        " texts of ",
        labels.size(),
        " labels, ",
        steps_text(world, parallel, config, task));
  }
  model->train();
  const auto summary = train(world, engine, task, config.trainer);
  const auto score = evaluate_text_classification(
      parallel, engine, *model, tokenizer, heldout_examples, config.batch_size);
  export_model(config, world, engine, *model);
  if (world.rank() == 0) {
    print_result(config, summary, score, majority_share(heldout_examples));
  }
}

int run_train(int argc, char** argv) {
  CLI::App app("Trains a text classifier or a language model", "tessera train");
  std::string file;
  std::vector<std::string> overrides;
  app.add_option("config", file, "Configuration file (JSON)")->required();
  app.add_option(
      "overrides", overrides, "key.path=value, in place of the file's value");
  app.footer("Keys and their defaults: configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (task_of(file, overrides) == "language_model") {
    train_language_model(file, overrides);
  } else {
    train_classifier(file, overrides);
  }
  return 0;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  return tessera::guarded_main([&] { return tessera::run_train(argc, argv); });
}
