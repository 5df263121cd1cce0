// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/plan_training.h"

#include "tessera/engine/device_config.h"
#include "tessera/pipeline/stage_layers.h"
#include "tessera/planner/rank_steps.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/tasks/example_batches.h"
#include "tessera/tasks/examples_task.h"
#include "tessera/tasks/model_task.h"
#include "tessera/tasks/planned_batch.h"
#include "tessera/tasks/preference_task.h"
#include "tessera/tasks/prompted_model.h"
#include "tessera/tasks/reward_task.h"
#include "tessera/tasks/run_model.h"
#include "tessera/tasks/task.h"
#include "tessera/tasks/text_classification_task.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/heads/class_heads.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/layers/experts.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

namespace tessera::tasks {

namespace {

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
  // Classifiers of texts need to know the padding, and a run takes that of the
  // tokenizer; planned batches have 0.
  if (!config.problem_type.empty() && config.task->max_length > 0 &&
      source.json.value("pad_token_id", nlohmann::json()).is_null()) {
    source.json["pad_token_id"] = 0;
  }
  if (config.task->wanted_head != nullptr && source.architecture.empty()) {
    source.architecture = zoo::architecture_with_head(
        source.json, config.task->wanted_head(config), path.string());
  }
  return source;
}

/// Not divided among ranks; takes no memory.
std::shared_ptr<zoo::Model> full_model(const ModelSource& source) {
  return lazy([&] {
    return zoo::from_config(source.json, {.architecture = source.architecture});
  });
}

/// Names of the number of layers in config.json.
constexpr std::array<const char*, 3> kLayerCounts{
    "num_hidden_layers",
    "n_layer",
    "num_layers"};

/// What may make layers of a model differ.
constexpr std::array<const char*, 8> kLayerDifferences{
    "num_decoder_layers",
    "decoder_layers",
    "layer_types",
    "attention_layers",
    "mlp_only_layers",
    "decoder_sparse_step",
    "first_k_dense_replace",
    "attention_window"};

/// The one number of layers in config.json; null if there is none or several.
const char* layer_count_key(const nlohmann::json& json) {
  const char* found = nullptr;
  for (const char* key : kLayerCounts) {
    if (json.contains(key)) {
      if (found != nullptr) {
        return nullptr;
      }
      found = key;
    }
  }
  return found;
}

bool has_value(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && !found->is_null() &&
         !(found->is_array() && found->empty()) && *found != 1;
}

/// Steps that take the most memory: all layers are run, and from the second
/// step on what they add is multiplied, by nearly 1.
constexpr zoo::LayerDropOptions kNoLayerLeftOut{
    .theta = 1 - 1e-12,
    .gamma = 1e9};

/// The same of tokens: the first step leaves out as few as steps do, whose
/// places take memory of their own, and the second none.
zoo::TokenDropOptions fewest_left_out(
    const zoo::TokenDropOptions& options,
    int64_t max_length) {
  const int64_t most = max_length - 1;
  return {
      .min_tokens =
          std::max(options.min_tokens, most - most % options.multiple),
      .steps = 1,
      .multiple = options.multiple};
}

std::shared_ptr<zoo::Model> planned_model(
    const TrainingConfig& config,
    const ModelSource& source,
    ParallelRun& parallel) {
  zoo::FromConfigOptions options{
      source.architecture, model_context(config, parallel)};
  const auto make = [&] {
    return lazy([&] { return zoo::from_config(source.json, options); });
  };
  auto model = make();
  if (const auto tied = model->tied_head();
      tied && config.lora && unties_of(config.lora->adapter)(*tied)) {
    options.head_weight = zoo::HeadWeight::kOwn;
    model = make();
  }
  init_parameters(*model, config.seed);
  if (config.lora) {
    zoo::apply_lora(*model, config.lora->adapter, config.seed);
  }
  freeze_parameters(config, *model);
  model->recompute(config.recomputation());
  if (config.layer_drop) {
    model->drop_layers(kNoLayerLeftOut);
  }
  if (config.token_drop) {
    model->drop_tokens(fewest_left_out(*config.token_drop, config.max_length));
  }
  model->train();
  return model;
}

/// A MakeFrozenModel that reads config.json and no weights.
std::shared_ptr<zoo::Model> planned_frozen_model(
    const std::filesystem::path& folder,
    ParallelRun& parallel,
    const TrainingConfig& config) {
  const std::string origin = (folder / "config.json").string();
  const nlohmann::json json =
      runtime::parse_json(runtime::read_text_file(origin), origin);
  auto model = lazy([&] {
    return zoo::from_config(
        json, {.context = zoo::layer_context(parallel)}, origin);
  });
  init_parameters(*model, config.seed);
  return model;
}

} // namespace

namespace {

/// Whether no layer is merged with another into a group.
bool layers_are_groups(const TrainingConfig& config, const zoo::Model& full) {
  const std::vector<std::string> layers = full.layer_names();
  const auto parameters = full.named_parameters();
  const GroupPolicy& groups = config.engine.sharding.groups;
  return std::all_of(layers.begin(), layers.end(), [&](const auto& layer) {
    int64_t numel = 0;
    for (const auto& item : parameters) {
      numel += item.key().starts_with(layer + ".") ? item.value().numel() : 0;
    }
    return numel >= groups.min_group_numel &&
           2 * numel > groups.max_group_numel;
  });
}

/// ModelLayers::are_alike
bool has_alike_layers(
    const TrainingConfig& config,
    const nlohmann::json& source,
    int64_t count) {
  const char* key = layer_count_key(source);
  const bool may_differ =
      std::any_of(
          kLayerDifferences.begin(),
          kLayerDifferences.end(),
          [&](const char* name) { return has_value(source, name); }) ||
      source.value("use_sliding_window", false);
  return key != nullptr && !may_differ && !config.distill &&
         !config.layer_drop && !config.token_drop &&
         config.task->make_loss == nullptr &&
         count == source.at(key).get<int64_t>();
}

bool has_experts(const zoo::Model& model) {
  const auto modules = model.modules(/*include_self=*/false);
  return std::any_of(modules.begin(), modules.end(), [](const auto& module) {
    return module->template as<zoo::Experts>() != nullptr;
  });
}

} // namespace

ModelLayers model_layers(const TrainingConfig& config) {
  const ModelSource source = source_of(config);
  const auto model = full_model(source);
  ModelLayers layers;
  layers.count = model->stage().count();
  layers.are_alike = has_alike_layers(config, source.json, layers.count);
  layers.can_be_fewer = layers.are_alike && layers_are_groups(config, *model);
  layers.have_independent_rows = !head_of(*model)->takes_two_views();
  layers.have_experts = has_experts(*model);
  // Router losses are what forbids to drop layers, too.
  layers.can_be_recomputed =
      !layers.have_experts || model->cannot_drop_layers().empty();
  return layers;
}

int64_t planned_tokens(const TrainingConfig& config) {
  if (config.task->max_length == 0) { // texts of a file, or images
    int64_t tokens = config.batch_size;
    if (config.get_if<ExampleTaskOptions>() != nullptr &&
        std::filesystem::exists(config.data.train_path())) {
      const zoo::ExampleFiles files(config.data.train_path());
      if (const auto* ids = files.find("input_ids")) {
        for (const int64_t size : ids->row_shape) {
          tokens *= size;
        }
      }
    }
    return tokens;
  }
  const auto* pairs = config.get_if<PreferenceTaskOptions>();
  const bool has_pairs =
      (pairs != nullptr && !pairs->is_packed() && pairs->has_pairs()) ||
      config.get_if<RewardTaskOptions>() != nullptr;
  return config.batch_size * config.max_length * (has_pairs ? 2 : 1);
}

namespace {

/// A run of a configuration as it is planned: without weights and data.
class ConfiguredTraining {
 public:
  /// @param config outlives this object.
  /// @param layers_in_place of the model's own number.
  ConfiguredTraining(
      const TrainingConfig& config,
      int world_size,
      int rank,
      std::optional<int64_t> layers_in_place = std::nullopt)
      : config_(config), source_(source_of(config)) {
    if (layers_in_place) {
      const char* key = layer_count_key(source_.json);
      TESSERA_CHECK(
          key != nullptr,
          "plan: config.json of the model has no number of layers, or several");
      source_.json[key] = *layers_in_place;
    }
    // Of a whole model: its head knows what it is trained on.
    const auto full = full_model(source_);
    layers_ = full->layer_names();
    PlannedBatch planned = planned_batch(config, *full, source_.json);
    batch_ = std::move(planned.input);
    notes_ = std::move(planned.notes);
    kept_ = kept_by(*full, world_size);
    batch_bytes_ = bytes_of(batch_);
    making_bytes_ = planned.making_bytes;
    job_.rank = rank;
    job_.world_size = world_size;
    job_.parallel = config.parallel;
    job_.accumulate = static_cast<int>(config.trainer.accumulate);
    job_.clips_gradients = config.trainer.clip_grad_norm > 0;
    job_.random_seed = config.seed;
    options_ = config.engine;
    options_.log_memory = false;
    add_lora_rates(config, options_.optimizer, *full);
    options_.other_names = checkpoint_names(*full);
  }

  PlannedJob& job() {
    return job_;
  }
  const EngineOptions& options() const {
    return options_;
  }
  /// Names of the layers of the whole model.
  const std::vector<std::string>& layers() const {
    return layers_;
  }
  /// What is assumed of the batches.
  const std::vector<std::string>& notes() const {
    return notes_;
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
                  dynamic_cast<zoo::Model&>(module).forward(batch_).loss;
              TESSERA_CHECK(
                  loss.defined(),
                  "plan: a {} computes no loss of a batch of the task {}; use a model with a head for it",
                  dynamic_cast<zoo::Model&>(module).architecture(),
                  config_.task->name);
              return loss;
            },
        .stage =
            [this](torch::nn::Module& module) {
              return zoo::pipeline_forward(
                  dynamic_cast<zoo::Model&>(module),
                  [this](int /*number*/) -> const zoo::ModelInput& {
                    return batch_;
                  });
            },
        .batches =
            [this](World& world, const PlannedJob& job) {
              return batches_of_step(world.device(), job.device);
            },
        .beside = has_own_loss() ? nullptr : beside_of_run()};
  }

 private:
  KeptBatches kept_by(zoo::Model& model, int world_size) const {
    const ParallelSizes& sizes = config_.parallel.sizes;
    const int64_t accumulate = config_.trainer.accumulate;
    const bool weighs = weighs_micro_batches(
        config_.loss_mean,
        has_equal_labels(config_, model),
        /*is_mean_over_labels=*/true,
        accumulate * world_size /
            (sizes.tensor * sizes.pipeline * sizes.context));
    const auto* preference = config_.get_if<PreferenceTaskOptions>();
    const bool begins_steps = // BatchLoss::begins_steps()
        preference != nullptr && !preference->has_pairs();
    return kept_batches(
        config_.loader, accumulate, weighs || begins_steps, sizes.pipeline > 1);
  }

  /// @param device where tensors are made.
  /// @param planned that of the run.
  std::vector<at::Tensor> batches_of_step(
      c10::Device device,
      c10::DeviceType planned) const {
    int64_t count = kept_.on_device;
    // Of the batches ahead, those that threads are making: at any moment of a
    // step, as reading may take as long as it does.
    int64_t making = 0;
    if (planned == c10::kCPU) {
      count += kept_.ahead;
      making = std::min<int64_t>(config_.loader.threads, kept_.ahead);
    }
    if (!device.is_cpu()) {
      --count; // `batch_` is there
    }
    std::vector<at::Tensor> batches;
    const auto add = [&](int64_t bytes) {
      batches.push_back(
          at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    };
    for (int64_t i = 0; i < count; ++i) {
      add(batch_bytes_);
    }
    for (int64_t i = 0; i < making && making_bytes_ > 0; ++i) {
      add(making_bytes_);
    }
    return batches;
  }

  /// The model's, as without PlannedTraining::beside.
  bool has_own_loss() const {
    return config_.task->make_loss == nullptr && !config_.distill;
  }

  /// What loss_of_run() makes.
  decltype(PlannedTraining::beside) beside_of_run() {
    return [this](
               World& world,
               ParallelRun& parallel,
               const std::shared_ptr<torch::nn::Module>& module) {
      TrainingConfig config = config_; // its limits of memory change
      config.engine.log_memory = false;
      const auto task = std::make_shared<Task>();
      task->model = std::dynamic_pointer_cast<zoo::Model>(module);
      task->head = head_of(*task->model);
      task->loss =
          loss_of_run(config, world, parallel, *task, planned_frozen_model);
      PlannedBeside beside;
      beside.loss = [this, task](torch::nn::Module& /*module*/) {
        // As often for each micro-batch of a step.
        task->loss->begin_step(
            *task->model, {batch_}, [](const at::Tensor& /*values*/) {});
        return task->loss->loss(*task->model, batch_);
      };
      if (const FrozenModel* frozen = task->loss->frozen()) {
        beside.model = &frozen->model();
        beside.engine = &frozen->engine();
        beside.memory = config.engine.memory;
      }
      return beside;
    };
  }

  const TrainingConfig& config_;
  ModelSource source_;
  std::vector<std::string> layers_;
  std::vector<std::string> notes_;
  zoo::ModelInput batch_;
  KeptBatches kept_;
  int64_t batch_bytes_ = 0;
  int64_t making_bytes_ = 0; ///< PlannedBatch::making_bytes
  PlannedJob job_;
  EngineOptions options_;
};

/// The probability with which late steps run each layer.
std::vector<double> late_probabilities(
    const zoo::LayerDropOptions& options,
    int64_t layers) {
  std::vector<double> all;
  for (int64_t layer = 0; layer < layers; ++layer) {
    all.push_back(zoo::keep_probability(
        options, layer, layers, std::numeric_limits<int64_t>::max()));
  }
  return all;
}

/// Counts operators of layers as often as late steps run them.
void expect_drops(
    const zoo::LayerDropOptions& options,
    const std::vector<std::string>& layers,
    StepMemoryPlan& plan) {
  const std::vector<double> probabilities =
      late_probabilities(options, static_cast<int64_t>(layers.size()));
  for (OperatorWork& work : plan.operators) {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      if (work.module.starts_with(layers[layer] + ".")) {
        work.flops *= probabilities[layer];
        work.bytes *= probabilities[layer];
      }
    }
  }
}

/// Which steps of the run the plan is of.
std::vector<std::string> planned_steps(
    const TrainingConfig& config,
    int64_t layers) {
  std::vector<std::string> notes;
  if (config.layer_drop) {
    const auto all = late_probabilities(*config.layer_drop, layers);
    notes.push_back(formatted(
        "model.layer_drop: memory of steps that run all layers; computation of late steps, which run {:.0f} % of them",
        100 * std::accumulate(all.begin(), all.end(), 0.0) /
            static_cast<double>(layers)));
  }
  if (config.token_drop) {
    notes.push_back(formatted(
        "model.token_drop: memory of the steps that take the most; computation of all tokens, as from step {} on",
        config.token_drop->steps));
  }
  if (config.curriculum) {
    notes.push_back(formatted(
        "training.curriculum: sequences of {} tokens, as from step {} on; those before take less memory and time",
        config.max_length,
        config.curriculum->steps));
  }
  if (const auto* pairs = config.get_if<PreferenceTaskOptions>()) {
    notes.push_back(formatted(
        "preference: all answers have {} tokens, and all of them are learned",
        pairs->is_packed() ? config.max_length / 2 : config.max_length));
  }
  if (config.get_if<RewardTaskOptions>() != nullptr) {
    notes.push_back(
        formatted("reward: all texts have {} tokens", config.max_length));
  }
  return notes;
}

/// Pairs of layers and recomputed ones, by chunk of a pipeline stage.
using LayersOfStage = std::vector<std::pair<int, int>>;

/// By pipeline stage, the first of those in a row that do the same, as
/// planner::plan_stages() takes it. The first and the last one have more than
/// layers.
std::vector<int> alike_stages(const TrainingConfig& config, int layers) {
  const ParallelOptions& parallel = config.parallel;
  if (parallel.cut != pipeline::PipelineCut::kLayers &&
      parallel.piece_of_layer.empty()) {
    return {}; // the model knows
  }
  if (parallel.schedule == PipelineScheduleKind::kZeroBubble) {
    return {}; // later stages keep more for gradients of weights
  }
  const auto recomputed = static_cast<int>(
      std::min<int64_t>(config.recomputation().layers, layers));
  const int stages = parallel.sizes.pipeline;
  std::vector<int> first;
  LayersOfStage before;
  for (int stage = 0; stage < stages; ++stage) {
    const pipeline::StageLayers stage_layers(
        pipeline::PipelinePosition{
            stages,
            parallel.chunks,
            stage,
            parallel.piece_of_layer,
            parallel.cut},
        layers);
    LayersOfStage now;
    for (int chunk = 0; chunk < stage_layers.chunks(); ++chunk) {
      const int begin = stage_layers.begin(chunk);
      const int end = stage_layers.end(chunk);
      now.emplace_back(end - begin, std::clamp(recomputed, begin, end) - begin);
    }
    const bool is_alike = stage > 1 && stage < stages - 1 && now == before;
    first.push_back(is_alike ? first.back() : stage);
    before = std::move(now);
  }
  return first;
}

} // namespace

std::vector<StepMemoryPlan> plan_training(
    const TrainingConfig& config,
    int world_size,
    int rank,
    c10::DeviceType device,
    const PlanReduction& reduction) {
  const PlannedCpuMatmul products(config.device.matmul);
  ConfiguredTraining run(config, world_size, rank, reduction.layers);
  run.job().device = device;
  if (reduction.accumulate) {
    run.job().accumulate = static_cast<int>(*reduction.accumulate);
  }
  std::vector<StepMemoryPlan> stages = planner::plan_stages(
      run.training(),
      run.options(),
      run.job(),
      reduction.alike_stages_once
          ? alike_stages(config, static_cast<int>(run.layers().size()))
          : std::vector<int>());
  const std::vector<std::string> layers = run.layers();
  const std::vector<std::string> notes =
      planned_steps(config, static_cast<int64_t>(layers.size()));
  for (StepMemoryPlan& stage : stages) {
    if (config.layer_drop) {
      expect_drops(*config.layer_drop, layers, stage);
    }
    for (const auto* some : {&notes, &run.notes()}) {
      stage.assumptions.insert(
          stage.assumptions.end(), some->begin(), some->end());
    }
  }
  return stages;
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

} // namespace tessera::tasks
