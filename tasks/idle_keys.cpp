// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/idle_keys.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/format.h"
#include "tessera/tasks/image_folder_task.h"
#include "tessera/tasks/supervised_texts.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/tokenized_data.h"
#include "tessera/tasks/training_config.h"

#include <initializer_list>
#include <utility>

namespace tessera::tasks {

namespace {

class IdleKeys {
 public:
  explicit IdleKeys(const runtime::ConfigReader& reader) : reader_(reader) {}

  void add(
      const char* section,
      std::initializer_list<const char*> keys,
      bool is_idle,
      const std::string& reason) {
    for (const char* key : keys) {
      if (is_idle && reader_.get_object(section).contains(key)) {
        lines_.push_back(
            formatted("{}.{} has no effect, because {}", section, key, reason));
      }
    }
  }

  std::vector<std::string> take() {
    return std::move(lines_);
  }

 private:
  const runtime::ConfigReader& reader_;
  std::vector<std::string> lines_;
};

void add_of_engine(const TrainingConfig& config, IdleKeys& idle) {
  idle.add(
      "optimizer",
      {"ema_warmup"},
      config.engine.optimizer.ema_decay == 0,
      "there are no averages: set optimizer.ema_decay");
  idle.add(
      "loss_scale",
      {"fixed",
       "initial",
       "growth_factor",
       "backoff_factor",
       "growth_interval",
       "minimum"},
      config.engine.precision.parameters.value_or(at::kFloat) != at::kHalf,
      "only losses of float16 parameters are scaled (precision.parameters)");
}

void add_of_data(const TrainingConfig& config, IdleKeys& idle) {
  idle.add(
      "data",
      {"text"},
      config.task == &kLanguageModel && !config.data.train.empty() &&
          !are_texts(config.data.train),
      "data.train is a file of tokens");
  idle.add(
      "data",
      {"label_separator"},
      config.task == &kTextClassification &&
          config.problem_type != "multi_label_classification",
      "a text has one label: set model.problem_type=multi_label_classification");
  if (const auto* const texts = config.get_if<SupervisedOptions>()) {
    idle.add(
        "data",
        {"max_new_tokens", "generate_heldout", "rouge_stemmer"},
        texts->metrics.empty(),
        "nothing is generated: set data.metric");
    idle.add(
        "data",
        {"prompt_key"},
        !texts->prompt_template.empty(),
        "data.template makes the prompts");
  }
  if (const auto* const images = config.get_if<ImageTaskOptions>()) {
    idle.add(
        "data",
        {"center_crop"},
        images->images.fit == ImageFit::kStretch,
        "data.fit=stretch takes whole images; stretch_crop cuts their middle");
  }
}

} // namespace

std::vector<std::string> idle_keys(
    const runtime::ConfigReader& reader,
    const TrainingConfig& config) {
  IdleKeys idle(reader);
  add_of_engine(config, idle);
  add_of_data(config, idle);
  return idle.take();
}

} // namespace tessera::tasks
