// SPDX-License-Identifier: Apache-2.0
// `tessera eval RUN_FOLDER|CONFIG [key.path=value ...]`: scores a classifier on
// held-out texts.

#include "program_main.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/tasks/finetune_config.h"
#include "tessera/zoo/tasks/text_classification_task.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace tessera {

namespace {

int run_eval(int argc, char** argv) {
  CLI::App app("Scores a classifier on held-out texts", "tessera eval");
  std::string path;
  std::vector<std::string> overrides;
  app.add_option(
         "run",
         path,
         "Run folder of `tessera train`, or a configuration file whose "
         "model.folder is a fine-tuned classifier")
      ->required();
  app.add_option(
      "overrides", overrides, "key.path=value, in place of the file's value");
  app.footer("Keys and their defaults: configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  const bool is_run_folder = std::filesystem::is_directory(path);
  const auto exported = std::filesystem::path(path) / "model";
  const auto adapter = std::filesystem::path(path) / "adapter";
  // Of LoRA that was not merged: the base model, and the adapter.
  const bool has_adapter =
      is_run_folder && !exists(exported) && std::filesystem::exists(adapter);
  if (is_run_folder && !has_adapter) {
    overrides.insert(overrides.begin(), "model.folder=" + exported.string());
  }
  FinetuneConfig config = read_finetune_config(
      is_run_folder ? std::filesystem::path(path) / "config.json"
                    : std::filesystem::path(path),
      overrides,
      nullptr);

  check(config.engine);
  config.engine.log_memory = false; // it is that of training

  World& world = init_on(config.device);
  const auto tokenizer = BertTokenizer::from_folder(config.model_folder);
  ParallelRun parallel(world, config.parallel, /*micro_batches=*/1);
  std::vector<std::string> labels;
  if (has_adapter) {
    labels = labels_of(read_labelled_texts(config.train_file, config.columns));
  }
  const auto model = lazy_text_classifier(
      config.model_folder, labels, zoo::layer_context(parallel));
  if (has_adapter) {
    zoo::load_lora(*model, adapter);
  }
  move_module(*model, world.device());
  const auto examples = encode_labelled_texts(
      read_labelled_texts(config.heldout_file, config.columns),
      classes_of(*model),
      tokenizer,
      config.max_length);
  config.engine.parallel = parallel.mesh_if_given();
  auto engine = wrap(model, config.engine);
  const auto score = evaluate_text_classification(
      parallel, engine, *model, tokenizer, examples, config.batch_size);
  if (world.rank() == 0) {
    std::printf(
        "accuracy %.1f %% of %lld texts, loss %.4f "
        "(always guessing the most frequent label: %.1f %%)\n",
        100 * score.accuracy,
        static_cast<long long>(score.examples),
        score.loss,
        100 * majority_share(examples));
  }
  return 0;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  return tessera::guarded_main([&] { return tessera::run_eval(argc, argv); });
}
