// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/plan_training.h"

#include "tessera/engine/device_config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
#include "tessera/zoo/tasks/task.h"
#include "tessera/zoo/tasks/text_classifier.h"

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace tessera::zoo {

namespace {

/// What a task needs of a head; none for tasks that take any.
WantedHead head_for(const TaskKind& kind) {
  if (&kind == &kTextClassification) {
    return {"a classifier of texts", [](const Head& head) {
              return predicts_for_examples(head.labels());
            }};
  }
  if (&kind == &kImageFolder) {
    return {"a classifier of images", [](const Head& head) {
              return head.images() != nullptr &&
                     head.labels() == HeadLabels::kClass;
            }};
  }
  return {};
}

/// The model's config.json with what the configuration replaces.
struct ModelSource {
  nlohmann::json json;
  std::string architecture;
};

ModelSource source_of(const TrainingConfig& config) {
  const std::filesystem::path path = config.model_folder.empty()
                                         ? config.model_config
                                         : config.model_folder / "config.json";
  ModelSource source{
      runtime::parse_json(runtime::read_text_file(path), path.string()),
      config.architecture};
  source.json.update(class_fields(config.classes, config.problem_type));
  if (const WantedHead wanted = head_for(*config.task);
      wanted.accepts && source.architecture.empty()) {
    source.architecture =
        architecture_with_head(source.json, wanted, path.string());
  }
  return source;
}

std::shared_ptr<Model> planned_model(
    const TrainingConfig& config,
    const ModelSource& source,
    ParallelRun& parallel) {
  const auto model = lazy([&] {
    return from_config(
        source.json, {source.architecture, fresh_layer_context(parallel)});
  });
  init_parameters(*model, config.seed);
  if (config.lora) {
    apply_lora(*model, config.lora->adapter, config.seed);
  }
  model->recompute(config.recomputation());
  model->train();
  return model;
}

/// Labels of a batch of texts or images.
at::Tensor labels_for(const Head& head, int64_t rows, int64_t length) {
  switch (head.labels()) {
    case HeadLabels::kNextTokens:
    case HeadLabels::kTokens:
      return torch::zeros({rows, length}, torch::kLong);
    case HeadLabels::kClass:
      return torch::zeros({rows}, torch::kLong);
    case HeadLabels::kClasses:
      return torch::zeros({rows, head.classes()});
    case HeadLabels::kNumbers:
      return torch::zeros({rows});
    case HeadLabels::kOther:
      break;
  }
  return {};
}

} // namespace

ModelInput largest_batch(
    Model& model,
    int64_t rows,
    int64_t length,
    bool masks) {
  const auto head = head_of(model);
  ModelInput batch;
  batch.loss_only = true;
  if (const PatchEmbeddingOptions* images = head->images()) {
    batch.pixel_values = torch::zeros(
        {rows, images->channels, images->image.height, images->image.width});
    if (head->takes_two_views()) {
      batch.others["second_pixel_values"] = batch.pixel_values.clone();
    }
  } else {
    batch.input_ids = torch::ones({rows, length}, torch::kLong);
    if (masks) {
      batch.attention_mask = torch::ones({rows, length}, torch::kLong);
      // As in a batch of texts of different lengths.
      batch.attention_mask[0][length - 1] = 0;
    }
  }
  batch.labels = labels_for(*head, rows, length);
  return batch;
}

int64_t layers_of(const TrainingConfig& config) {
  const ModelSource source = source_of(config);
  const auto whole = lazy([&] {
    return from_config(source.json, {.architecture = source.architecture});
  });
  return whole->stage().count();
}

namespace {

/// A run of a configuration as it is planned: without weights and data.
class ConfiguredTraining {
 public:
  /// @param config outlives this object.
  ConfiguredTraining(const TrainingConfig& config, int world_size, int rank)
      : config_(config), source_(source_of(config)) {
    // Of a whole model: its head knows what it is trained on.
    const auto whole = lazy([&] {
      return from_config(source_.json, {.architecture = source_.architecture});
    });
    batch_ = largest_batch(
        *whole,
        config.batch_size,
        config.max_length,
        config.task != &kLanguageModel && config.task != &kImageFolder);
    if (config.token_data.objective.kind == ObjectiveKind::kBlankFilling) {
      // Longer than the model's positions: those of blanks are their places.
      batch_.position_ids =
          torch::zeros({config.batch_size, 2, config.max_length}, torch::kLong);
      batch_.others["sep"] =
          torch::full({config.batch_size}, config.max_length / 2, torch::kLong);
    }
    job_.rank = rank;
    job_.world_size = world_size;
    job_.parallel = config.parallel;
    job_.accumulate = static_cast<int>(config.trainer.accumulate);
    job_.clips_gradients = config.trainer.clip_grad_norm > 0;
    job_.random_seed = config.seed;
    options_ = config.engine;
    options_.log_memory = false;
  }

  PlannedJob& job() {
    return job_;
  }
  const EngineOptions& options() const {
    return options_;
  }
  /// Texts of tokens that differ, so that experts get equal shares of them.
  void mix_tokens() {
    if (batch_.input_ids.defined()) {
      batch_.input_ids = torch::randint(
          source_.json.value("vocab_size", int64_t{2}),
          batch_.input_ids.sizes(),
          torch::kLong);
    }
  }

  /// This object outlives it.
  PlannedTraining training() {
    return {
        .make = [this](World& world, ParallelRun& parallel)
            -> std::shared_ptr<torch::nn::Module> {
          auto model = planned_model(config_, source_, parallel);
          const c10::Device device = world.device();
          if (!device.is_cpu()) { // no dry run, which have threads
            move_module(*model, device);
            batch_ = batch_.with_tensors([device](const at::Tensor& tensor) {
              return tensor.to(device);
            });
          }
          return model;
        },
        .loss =
            [this](torch::nn::Module& module) {
              const at::Tensor loss =
                  dynamic_cast<Model&>(module).forward(batch_).loss;
              TESSERA_CHECK(
                  loss.defined(),
                  "plan: the model computes no loss of a batch with these labels; name another class in model.architecture");
              return loss;
            },
        .stage =
            [this](torch::nn::Module& module) {
              return pipeline_forward(
                  dynamic_cast<Model&>(module),
                  [this](int /*number*/) -> const ModelInput& {
                    return batch_;
                  });
            }};
  }

 private:
  const TrainingConfig& config_;
  ModelSource source_;
  ModelInput batch_;
  PlannedJob job_;
  EngineOptions options_;
};

} // namespace

std::vector<StepMemoryPlan> plan_training(
    const TrainingConfig& config,
    int world_size,
    int rank,
    c10::DeviceType device) {
  ConfiguredTraining run(config, world_size, rank);
  run.job().device = device;
  return plan_stages(run.training(), run.options(), run.job());
}

SimulatedRun simulate_training(
    const TrainingConfig& config,
    int world_size,
    int rank,
    int steps,
    SimulationOptions settings) {
  engine::init_on(config.device); // of the process: threads, devices, products
  settings.init = engine::init_options(config.device);
  ConfiguredTraining run(config, world_size, rank);
  run.mix_tokens();
  run.job().steps = steps;
  return simulate_rank(run.training(), run.options(), run.job(), settings);
}

} // namespace tessera::zoo
