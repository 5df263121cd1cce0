// SPDX-License-Identifier: Apache-2.0
// The memory that a dry run plans, against what LibTorch's allocator on the CPU
// counts in a real run of the same training.
#include "tessera/planner/step_plan.h"

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/tasks/plan_training.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>

namespace tessera::planner::step_plan_test {

namespace {

/// A training that is planned and run.
struct Case {
  const char* name;
  const char* architecture;
  const char* config; ///< of the model, JSON
  int64_t rows = 4;
  int64_t length = 128;
  int64_t recomputed = 0; ///< layers
  EngineOptions options = {};
  PlannedJob job = {};
  bool has_adapters = false;
  int64_t image = 0; ///< its side; 0: texts
  bool is_classifier = false;
  bool recomputes_attention = false;
};

void PrintTo(const Case& subject, std::ostream* out) { // NOLINT: GoogleTest's
  *out << subject.name;
}

constexpr const char* kGpt2 = R"({"model_type": "gpt2", "vocab_size": 2000,
    "n_positions": 256, "n_embd": 256, "n_layer": 4, "n_head": 4})";
constexpr const char* kBert = R"({"model_type": "bert", "vocab_size": 2000,
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "max_position_embeddings": 256})";
constexpr const char* kLlama = R"({"model_type": "llama", "vocab_size": 2000,
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 256})";
constexpr const char* kT5 = R"({"model_type": "t5", "vocab_size": 2000,
    "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3,
    "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0,
    "pad_token_id": 0})";
constexpr const char* kVit = R"({"model_type": "vit", "hidden_size": 192,
    "intermediate_size": 768, "num_hidden_layers": 4,
    "num_attention_heads": 4, "image_size": 112, "patch_size": 8,
    "num_labels": 10})";
constexpr const char* kQwenMoe = R"({"model_type": "qwen3_moe",
    "vocab_size": 2000, "hidden_size": 256, "intermediate_size": 512,
    "moe_intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 8, "head_dim": 32, "num_key_value_heads": 4,
    "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
    "max_position_embeddings": 256})";
constexpr const char* kGlm = R"({"model_type": "glm", "vocab_size": 2000,
    "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4,
    "num_attention_heads": 4, "head_dim": 64, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "pad_token_id": 0})";

EngineOptions with(const std::function<void(EngineOptions&)>& change) {
  EngineOptions options;
  change(options);
  return options;
}

PlannedJob on(
    int ranks,
    const ParallelSizes& sizes,
    int accumulate = 1,
    bool clips = false) {
  PlannedJob job;
  job.world_size = ranks;
  job.parallel.sizes = sizes;
  job.accumulate = accumulate;
  job.clips_gradients = clips;
  job.random_seed = 7;
  return job;
}

std::vector<Case> cases() {
  const EngineOptions zero3 = with([](EngineOptions& options) {
    options.sharding.zero_stage = 3;
    options.sharding.prefetch_depth = 1;
  });
  const EngineOptions bfloat16 = with([](EngineOptions& options) {
    options.precision.parameters = at::kBFloat16;
  });
  const EngineOptions offload = with([](EngineOptions& options) {
    options.placement.activations = MemoryTier::kHost;
    options.offload.activation_host_bytes = int64_t{1} << 30;
  });
  return {
      {"gpt2", "GPT2LMHeadModel", kGpt2},
      {"bert", "BertForMaskedLM", kBert},
      {"llama", "LlamaForCausalLM", kLlama},
      {"t5", "T5ForConditionalGeneration", kT5},
      {.name = "vit",
       .architecture = "ViTForImageClassification",
       .config = kVit,
       .rows = 4,
       .image = 112,
       .is_classifier = true},
      {"qwen_moe", "Qwen3MoeForCausalLM", kQwenMoe, 8, 256},
      {"glm", "GlmForCausalLM", kGlm},
      {"recomputed", "GPT2LMHeadModel", kGpt2, 8, 128, 3},
      {.name = "parts",
       .architecture = "BertForMaskedLM",
       .config = kBert,
       .rows = 8,
       .options = with(
           [](EngineOptions& options) { options.recompute_operators = true; }),
       .recomputes_attention = true},
      {"offloaded", "GPT2LMHeadModel", kGpt2, 8, 128, 0, offload},
      {"accumulated",
       "GPT2LMHeadModel",
       kGpt2,
       4,
       128,
       0,
       {},
       on(1, {}, 3, true)},
      {"bfloat16", "LlamaForCausalLM", kLlama, 8, 128, 0, bfloat16},
      {.name = "lora",
       .architecture = "LlamaForCausalLM",
       .config = kLlama,
       .rows = 8,
       .has_adapters = true},
      {"zero3", "GPT2LMHeadModel", kGpt2, 4, 128, 0, zero3, on(2, {})},
      {"tensor2",
       "LlamaForCausalLM",
       kLlama,
       4,
       128,
       0,
       {},
       on(2, {.shard = 1, .tensor = 2})},
      {"pipeline2",
       "GPT2LMHeadModel",
       kGpt2,
       4,
       128,
       0,
       {},
       on(2, {.shard = 1, .pipeline = 2}, 4)},
      {"pipeline2_offloaded",
       "GPT2LMHeadModel",
       kGpt2,
       8,
       128,
       0,
       offload,
       on(2, {.shard = 1, .pipeline = 2}, 4)},
      // What the rest leaves of host memory is a limit.
      {"host_budget",
       "GPT2LMHeadModel",
       kGpt2,
       8,
       128,
       0,
       with([](EngineOptions& options) {
         options.placement.activations = MemoryTier::kHost;
         options.memory.host_bytes = int64_t{2} << 30;
       })},
  };
}

zoo::ModelInput batch_of(const Case& subject) {
  torch::manual_seed(3);
  zoo::ModelInput input;
  if (subject.image > 0) {
    input.pixel_values =
        torch::randn({subject.rows, 3, subject.image, subject.image});
    input.labels = torch::randint(10, {subject.rows});
    return input;
  }
  input.input_ids = torch::randint(3, 100, {subject.rows, subject.length});
  input.labels = input.input_ids.clone();
  return input;
}

PlannedTraining training_of(const Case& subject, const zoo::ModelInput& input) {
  return {
      [&subject](World& /*world*/, ParallelRun& parallel)
          -> std::shared_ptr<torch::nn::Module> {
        const auto model = lazy([&] {
          return zoo::from_config(
              nlohmann::json::parse(subject.config),
              {.architecture = subject.architecture,
               .context = zoo::fresh_layer_context(parallel)});
        });
        init_parameters(*model, 5);
        if (subject.has_adapters) {
          zoo::LoraConfig adapter;
          adapter.target_modules = {{"q_proj", "v_proj"}};
          zoo::apply_lora(*model, adapter, 5);
        }
        model->train();
        model->recompute(
            {.layers = subject.recomputed,
             .attention = subject.recomputes_attention});
        return model;
      },
      [&input](torch::nn::Module& module) {
        return dynamic_cast<zoo::Model&>(module).forward(input).loss;
      },
      [&input](torch::nn::Module& module) {
        return zoo::pipeline_forward(
            dynamic_cast<zoo::Model&>(module),
            [&input](int /*number*/) -> const zoo::ModelInput& {
              return input;
            });
      }};
}

int64_t of_activations(const MemoryBytes& bytes) {
  return bytes[static_cast<size_t>(MemoryPurpose::kActivations)];
}

/// Of memory.
struct Measured {
  int64_t peak = 0; ///< of the device
  int64_t host_activations = 0;
  /// Of activations in the last step, in bytes.
  int64_t to_host = 0;
  int64_t to_device = 0;
};

/// The steps that plan() takes, with numbers.
Measured measured_memory(
    const Case& subject,
    const PlannedTraining& training,
    World& world) {
  const PlannedJob& job = subject.job;
  const int64_t before = runtime::cpu_bytes_live();
  ParallelRun parallel(world, job.parallel, job.accumulate);
  const auto module = training.make(world, parallel);
  EngineOptions options = subject.options;
  options.parallel = parallel.mesh_or_null();
  Engine engine(world, module, options);
  runtime::reset_cpu_bytes_peak();
  ActivationStatistics before_step;
  for (int step = 0; step < job.steps; ++step) {
    before_step = engine.stats().activations;
    const auto with_key = [&](int micro, const auto& forward) {
      std::optional<RandomKeyScope> scope;
      if (job.random_seed) {
        scope.emplace(RandomKey{*job.random_seed, step, micro}, at::kCPU);
      }
      return forward();
    };
    if (parallel.pipeline() != nullptr) {
      const PipelineForward forward = training.stage(*module);
      PipelineCallbacks callbacks;
      callbacks.forward =
          [&](int chunk, int number, const std::vector<at::Tensor>& received) {
            return with_key(
                number, [&] { return forward(chunk, number, received); });
          };
      engine.run_pipeline(*parallel.pipeline(), callbacks);
    } else {
      for (int micro = 0; micro < job.accumulate; ++micro) {
        const at::Tensor loss =
            with_key(micro, [&] { return training.loss(*module); });
        engine.backward(job.accumulate == 1 ? loss : loss / job.accumulate);
      }
    }
    if (job.clips_gradients) {
      engine.clip_grad_norm(1);
    }
    engine.step();
  }
  const ActivationStatistics copied = engine.stats().activations;
  return {
      runtime::cpu_bytes_peak() - before,
      of_activations(engine.measured_memory(MemoryTier::kHost)),
      copied.bytes_to_host - before_step.bytes_to_host,
      copied.bytes_to_device - before_step.bytes_to_device};
}

void expect_planned(const Case& given, World& world) {
  runtime::install_cpu_memory_counter();
  Case subject = given;
  subject.options.log_memory = false;
  subject.job.rank = world.rank();
  const zoo::ModelInput input = batch_of(subject);
  const PlannedTraining training = training_of(subject, input);
  const StepMemoryPlan plan =
      tessera::plan(training, subject.options, subject.job);
  const Measured memory = measured_memory(subject, training, world);
  const auto measured = static_cast<double>(memory.peak);
  const auto said = static_cast<double>(plan.peak_bytes);
  std::fprintf(
      stderr,
      "%-12s rank %d measured %8.2f MB, planned %8.2f MB, %+.2f %%, of which activations %.2f MB; %.3f GFLOP; peak in %s %s, %zu moments\n",
      subject.name,
      world.rank(),
      measured / 1e6,
      said / 1e6,
      100 * (said / measured - 1),
      double(plan.peak.activations) / 1e6,
      plan.flops() / 1e9,
      plan.peak.module.c_str(),
      plan.peak.operation.c_str(),
      plan.timeline.size());
  for (const std::string& each : plan.assumptions) {
    std::fprintf(stderr, "  %s\n", each.c_str());
  }
  // All is counted: what differs is the allocator's header of each block, and
  // how many threads have buffers.
  EXPECT_NEAR(said / measured, 1, 0.01) << subject.name;
  EXPECT_EQ(
      of_activations(plan.planned[static_cast<size_t>(MemoryTier::kHost)]),
      memory.host_activations)
      << subject.name;
  EXPECT_EQ(plan.activation_copies.to_host, memory.to_host) << subject.name;
  EXPECT_EQ(plan.activation_copies.to_device, memory.to_device) << subject.name;
}

class StepPlan : public ::testing::TestWithParam<Case> {};

} // namespace

TEST_P(StepPlan, IsWhatTheAllocatorCounts) {
  const Case& subject = GetParam();
  const auto results = tests::run_ranks_expecting(
      subject.job.world_size,
      [&](World& world) { expect_planned(subject, world); },
      {.limit = std::chrono::seconds(240),
       .collective_timeout = std::chrono::milliseconds(120000)});
  for (const tests::RankResult& result : results) {
    EXPECT_EQ(result.exit_code, 0);
    std::printf("%s", result.output.c_str());
  }
}

/// All models of the zoo, small: their operators have shapes on both devices.
TEST(StepPlanOfAllModels, IsMade) {
  int planned = 0;
  for (const auto& folder :
       std::filesystem::directory_iterator(fixture("models"))) {
    const std::string name = folder.path().filename().string();
    SCOPED_TRACE(name);
    const nlohmann::json json = nlohmann::json::parse(
        runtime::read_text_file(folder.path() / "config.json"));
    const zoo::ModelInput input =
        zoo::ModelInput::from_named(zoo::ModelFixture(name).tensors("in."));
    for (const c10::DeviceType device : {c10::kCPU, c10::kCUDA}) {
      PlannedJob job;
      job.device = device;
      job.clips_gradients = true;
      EngineOptions options;
      options.log_memory = false;
      try {
        const StepMemoryPlan plan = tessera::plan(
            {.make =
                 [&](World& /*world*/, ParallelRun& /*parallel*/) {
                   auto made = zoo::from_config(json);
                   made->train();
                   return made;
                 },
             .loss =
                 [&](torch::nn::Module& module) {
                   return zoo::loss_of(
                       dynamic_cast<zoo::Model&>(module).forward(input), input);
                 }},
            options,
            job);
        EXPECT_GT(plan.flops(), 0);
        EXPECT_GT(plan.peak.activations, 0);
        // They have no branches on values, and the engine's are not theirs.
        for (const std::string& each : plan.assumptions) {
          EXPECT_EQ(each.find("read zero"), std::string::npos) << each;
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << std::string(error.what()).substr(0, 300);
      }
    }
    ++planned;
  }
  EXPECT_GT(planned, 50);
}

/// A GPT of `layers` layers on CUDA, in bfloat16 with dropout.
StepMemoryPlan planned_gpt(
    int64_t layers,
    int64_t features,
    int64_t heads,
    int ranks,
    const ParallelSizes& sizes,
    int64_t recomputed,
    int accumulate) {
  const nlohmann::json json = {
      {"model_type", "gpt2"},
      {"vocab_size", 50257},
      {"n_positions", 2048},
      {"n_embd", features},
      {"n_layer", layers},
      {"n_head", heads}};
  zoo::ModelInput input;
  input.input_ids = torch::ones({1, 2048}, torch::kLong);
  input.labels = input.input_ids;
  input.loss_only = true;
  PlannedJob job = on(ranks, sizes, accumulate);
  job.device = c10::kCUDA;
  EngineOptions options;
  options.log_memory = false;
  options.precision.parameters = at::kBFloat16;
  options.sharding.zero_stage = 3;
  return tessera::plan(
      {.make =
           [&](World& /*world*/, ParallelRun& parallel) {
             const auto model = lazy([&] {
               return zoo::from_config(
                   json,
                   {.architecture = "GPT2LMHeadModel",
                    .context = zoo::fresh_layer_context(parallel)});
             });
             init_parameters(*model, 5);
             model->train();
             model->recompute({.layers = recomputed});
             return model;
           },
       .loss =
           [&](torch::nn::Module& module) {
             return dynamic_cast<zoo::Model&>(module).forward(input).loss;
           },
       .stage =
           [&](torch::nn::Module& module) {
             return zoo::pipeline_forward(
                 dynamic_cast<zoo::Model&>(module),
                 [&](int /*number*/) -> const zoo::ModelInput& {
                   return input;
                 });
           }},
      options,
      job);
}

/// On any machine: 13 billion parameters on 8 devices of 40 GiB, 175 billion
/// on 128 of 80.
TEST(StepPlanOfLargeModels, IsMade) {
  const StepMemoryPlan gpt_13b =
      planned_gpt(40, 5120, 40, 8, {}, /*recomputed=*/39, 1);
  // 6 for each parameter and token, 2 more for the layers that run twice.
  constexpr double kParameters = 12.0 * 40 * 5120 * 5120;
  EXPECT_NEAR(gpt_13b.flops() / (8 * kParameters * 2048), 1, 0.15);
  EXPECT_LT(gpt_13b.peak_bytes, int64_t{40} << 30);
  EXPECT_GT(gpt_13b.peak_bytes, int64_t{20} << 30);
  const StepMemoryPlan gpt_175b = planned_gpt(
      96, 12288, 96, 128, {.shard = 2, .tensor = 8, .pipeline = 8}, 96, 8);
  EXPECT_LT(gpt_175b.peak_bytes, int64_t{80} << 30);
  EXPECT_GT(gpt_175b.peak_bytes, int64_t{20} << 30);
  std::printf(
      "13B on 8: %.2f GiB, activations %.2f; 175B on 128: %.2f GiB, activations %.2f\n",
      static_cast<double>(gpt_13b.peak_bytes) / (1 << 30),
      static_cast<double>(gpt_13b.peak.activations) / (1 << 30),
      static_cast<double>(gpt_175b.peak_bytes) / (1 << 30),
      static_cast<double>(gpt_175b.peak.activations) / (1 << 30));
}

/// A module gets back what it lent, and is planned as one that is made.
TEST(StepPlanOfAModule, LeavesItAsItWas) {
  const nlohmann::json json = nlohmann::json::parse(kGpt2);
  zoo::ModelInput input;
  input.input_ids = torch::randint(3, 100, {4, 128});
  input.labels = input.input_ids;
  const auto model =
      zoo::from_config(json, {.architecture = "GPT2LMHeadModel"});
  model->eval();
  model->forward(input).loss.backward();
  const at::Tensor before = model->forward(input).loss.detach();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  EngineOptions options;
  options.log_memory = false;
  model->train();
  const StepMemoryPlan plan = tessera::plan(
      *model, options, [&] { return model->forward(input).loss; });
  EXPECT_THROW(
      tessera::plan(
          *model,
          options,
          [&] {
            model->forward(input);
            return torch::rand({9}).nonzero();
          }),
      Error);
  model->eval();
  EXPECT_TRUE(model->forward(input).loss.equal(before));
  for (size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(model->parameters()[i].grad().equal(gradients[i]));
  }
  model->zero_grad();
  model->forward(input).loss.backward();
  EXPECT_TRUE(model->parameters()[3].grad().equal(gradients[3]));

  const StepMemoryPlan made = tessera::plan(
      {.make =
           [&](World& /*world*/, ParallelRun& /*parallel*/) {
             auto twin =
                 zoo::from_config(json, {.architecture = "GPT2LMHeadModel"});
             twin->train();
             return twin;
           },
       .loss =
           [&](torch::nn::Module& module) {
             return dynamic_cast<zoo::Model&>(module).forward(input).loss;
           }},
      options);
  EXPECT_EQ(plan.peak_bytes, made.peak_bytes);
  EXPECT_EQ(plan.flops(), made.flops());
}

/// The recipe of the quickstart, without weights and data.
TEST(StepPlanOfAConfiguration, IsMade) {
  const TemporaryFolder folder;
  runtime::write_file_atomically(
      folder.path() / "config.json",
      R"({"model_type": "bert", "vocab_size": 1000, "hidden_size": 64,
          "intermediate_size": 256, "num_hidden_layers": 2,
          "num_attention_heads": 4, "max_position_embeddings": 64})");
  tasks::TrainingConfig config(tasks::kTextClassification);
  config.model_folder = folder.path();
  config.classes = {"bad", "good"};
  config.max_length = 64;
  config.batch_size = 8;
  const auto plans = tasks::plan_training(config, 2);
  ASSERT_EQ(plans.size(), 1);
  config.batch_size = 16;
  const auto doubled = tasks::plan_training(config, 2);
  EXPECT_NEAR(
      static_cast<double>(doubled[0].activations_after_forward) /
          static_cast<double>(plans[0].activations_after_forward),
      2,
      0.1);
  config.checkpoint_layers = 2;
  EXPECT_LT(
      tasks::plan_training(config, 2)[0].activations_after_forward,
      doubled[0].activations_after_forward / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    StepPlan,
    ::testing::ValuesIn(cases()),
    [](const auto& info) { return std::string(info.param.name); });

} // namespace tessera::planner::step_plan_test
