// SPDX-License-Identifier: Apache-2.0
// Models of the zoo trained under every layout of ranks, held against one rank
// that sees all batches: losses, norms and weights, with dropout.
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/expert_engines.h"
#include "tessera/engine/parallel_run.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/sharding/parallel/random_key.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {
namespace {

using Kind = PipelineScheduleKind;

constexpr int kSteps = 2;
constexpr uint64_t kSeed = 17;

struct Subject {
  const char* name;
  const char* architecture;
  const char* config; ///< JSON
  bool is_classifier = false;
  bool has_experts = false;
  bool takes_sequence = true; ///< sequences can be divided
  std::vector<int64_t> image = {}; ///< height, width; none for texts
};

// Uneven: 5 layers, vocabularies of a prime number of words, 6 heads of 2.
const Subject kSubjects[] = {
    {"gpt",
     "GPT2LMHeadModel",
     R"({"model_type": "gpt2", "vocab_size": 31, "n_embd": 12, "n_layer": 5,
         "n_head": 6, "n_positions": 16, "resid_pdrop": 0.2, "embd_pdrop": 0.2,
         "attn_pdrop": 0.2})"},
    {"llama",
     "LlamaForCausalLM",
     R"({"model_type": "llama", "vocab_size": 29, "hidden_size": 16,
         "intermediate_size": 20, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": 16, "attention_dropout": 0.2})"},
    {"bert",
     "BertForMaskedLM",
     R"({"model_type": "bert", "vocab_size": 37, "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 5,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})"},
    {"t5_v1_1",
     "T5ForConditionalGeneration",
     R"({"model_type": "t5", "vocab_size": 31, "d_model": 12, "d_kv": 2,
         "d_ff": 18, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 6,
         "feed_forward_proj": "gated-gelu", "dropout_rate": 0.2,
         "decoder_start_token_id": 0, "pad_token_id": 0,
         "tie_word_embeddings": true})"},
    {"bert_classifier",
     "BertForSequenceClassification",
     R"({"model_type": "bert", "vocab_size": 37, "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 4,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})",
     true},
    {"longformer_classifier",
     "LongformerForSequenceClassification",
     R"({"model_type": "longformer", "vocab_size": 37, "hidden_size": 12,
         "intermediate_size": 18, "num_hidden_layers": 4,
         "num_attention_heads": 6, "max_position_embeddings": 16,
         "attention_window": 4, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     true},
    {"t5",
     "T5ForConditionalGeneration",
     R"({"model_type": "t5", "vocab_size": 31, "d_model": 12, "d_kv": 3,
         "d_ff": 18, "num_layers": 3, "num_decoder_layers": 2, "num_heads": 6,
         "relative_attention_num_buckets": 8, "dropout_rate": 0.2,
         "relative_attention_max_distance": 10})"},
    {"qwen3_moe",
     "Qwen3MoeForCausalLM",
     R"({"model_type": "qwen3_moe", "vocab_size": 29, "hidden_size": 16,
         "intermediate_size": 20, "moe_intermediate_size": 12,
         "num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 4,
         "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
         "norm_topk_prob": true, "max_position_embeddings": 16})",
     false,
     true},
    // 15 patches and the class token.
    {"vit",
     "ViTForImageClassification",
     R"({"model_type": "vit", "hidden_size": 12, "intermediate_size": 18,
         "num_hidden_layers": 5, "num_attention_heads": 6,
         "image_size": [12, 20], "patch_size": 4, "num_labels": 3,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})",
     true,
     false,
     true,
     {12, 20}},
    // Of which the encoder sees 7, by noise that is drawn.
    {"mae",
     "ViTMAEForPreTraining",
     R"({"model_type": "vit_mae", "hidden_size": 12, "intermediate_size": 18,
         "num_hidden_layers": 3, "num_attention_heads": 6,
         "image_size": [12, 20], "patch_size": 4, "mask_ratio": 0.5,
         "decoder_hidden_size": 8, "decoder_intermediate_size": 10,
         "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 4,
         "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2})",
     false,
     false,
     true,
     {12, 20}},
    // Maps of 5 x 9, which windows do not divide, then 3 x 5.
    {"swin",
     "SwinForImageClassification",
     R"({"model_type": "swin", "embed_dim": 12, "depths": [3, 2],
         "num_heads": [6, 4], "window_size": 3, "mlp_ratio": 1.5,
         "image_size": [10, 18], "patch_size": 2, "num_labels": 3,
         "drop_path_rate": 0.3, "hidden_dropout_prob": 0.2,
         "attention_probs_dropout_prob": 0.2})",
     true,
     false,
     false,
     {10, 18}}};

struct Layout {
  std::string name;
  ParallelOptions parallel;
  int zero_stage = 3;
  int recomputed = 0;
  StatePlacement placement = StatePlacement::kAutomatic;
  std::optional<at::ScalarType> compute =
      {}; ///< lower precision, on one rank too
  int batches = 4; ///< of a step, over all ranks
};

int ranks_of(const ParallelSizes& sizes) {
  return sizes.data * sizes.shard * sizes.tensor * sizes.pipeline *
         sizes.context;
}

ModelInput batch_of(const Subject& subject, int step, int number) {
  torch::manual_seed(static_cast<uint64_t>(100 * step + number));
  ModelInput input;
  if (!subject.image.empty()) {
    input.pixel_values =
        torch::randn({2, 3, subject.image[0], subject.image[1]});
    if (subject.is_classifier) {
      input.labels = torch::randint(3, {2});
    }
    return input;
  }
  input.input_ids = torch::randint(3, 29, {2, 8}, torch::kLong);
  input.attention_mask = torch::ones({2, 8}, torch::kLong);
  input.attention_mask[1].narrow(0, 6, 2).zero_();
  input.labels =
      subject.is_classifier ? torch::randint(2, {2}) : input.input_ids.clone();
  if (!subject.is_classifier) {
    input.labels[1].narrow(0, 6, 2).fill_(-100);
    input.labels[0][number] = -100; // as many everywhere
  }
  return input;
}

EngineOptions engine_options(const Layout& layout) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.zero_stage = layout.zero_stage;
  options.sharding.precision.parameters = layout.compute;
  options.optimizer.placement = layout.placement;
  options.optimizer.lr = 1e-2;
  options.log_memory = false;
  return options;
}

struct Seen {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> parameters;
};

/// Ranks that divide sequences draw masks of their own tokens.
bool has_dropout(const Layout& layout) {
  return layout.parallel.sizes.context == 1;
}

/// What divides experts is for models that have some; windows of images need
/// whole maps between layers; those of texts with global tokens, and models of
/// images, do not divide sequences over context ranks.
bool takes(const Subject& subject, const Layout& layout) {
  const ParallelSizes& sizes = layout.parallel.sizes;
  if (layout.parallel.sequence && !subject.takes_sequence) {
    return false;
  }
  const std::string_view name = subject.name;
  return (sizes.expert > 1) == subject.has_experts &&
         (sizes.context == 1 ||
          (subject.image.empty() && !name.starts_with("longformer")));
}

std::shared_ptr<Model> load(
    const std::filesystem::path& folder,
    const LayerContext& context,
    const Layout& layout) {
  auto model =
      from_pretrained(folder, {.context = context, .dtype = at::kDouble});
  model->train(has_dropout(layout));
  return model;
}

Seen train_alone(
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  World world(0, 1, 0, nullptr, {});
  const auto model = load(folder, {}, layout);
  Engine engine(
      world, model, engine_options({"alone", {}, 3, 0, {}, layout.compute}));
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int i = 0; i < layout.batches; ++i) {
      const ModelInput input = batch_of(subject, step, i);
      const RandomKeyScope random({kSeed, step, i}, at::kCPU);
      const at::Tensor loss = model->forward(input).loss / layout.batches;
      engine.backward(loss);
      sum += loss.item<double>();
    }
    seen.losses.push_back(sum);
    seen.norms.push_back(engine.clip_grad_norm(0.5));
    engine.step();
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        seen.parameters[name] = value.clone();
      });
  return seen;
}

/// One step of this rank's batches. @return the sum of their losses, where
/// this rank tells it.
template <typename AnyEngine>
double run_step(
    AnyEngine& engine,
    Model& model,
    ParallelRun& parallel,
    const Subject& subject,
    const Layout& layout,
    int step) {
  const BatchShare share = parallel.batches();
  std::vector<ModelInput> inputs;
  std::vector<int> numbers;
  for (int i = share.index; i < layout.batches; i += share.count) {
    inputs.push_back(batch_of(subject, step, i));
    numbers.push_back(i);
  }
  double sum = 0;
  if (parallel.pipeline() == nullptr) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const RandomKeyScope random({kSeed, step, numbers[i]}, at::kCPU);
      const at::Tensor loss =
          model.forward(inputs[i]).loss / static_cast<double>(inputs.size());
      engine.backward(loss);
      sum += loss.item<double>() * static_cast<double>(inputs.size());
    }
    return parallel.tells_loss() ? sum : 0;
  }
  const PipelineForward forward =
      pipeline_forward(model, [&](int number) -> const ModelInput& {
        return inputs.at(static_cast<size_t>(number));
      });
  PipelineCallbacks callbacks;
  callbacks.forward =
      [&](int chunk, int number, const std::vector<at::Tensor>& received) {
        const RandomKeyScope random(
            {kSeed, step, numbers.at(static_cast<size_t>(number))}, at::kCPU);
        return forward(chunk, number, received);
      };
  for (const at::Tensor& loss :
       engine.run_pipeline(*parallel.pipeline(), callbacks)) {
    sum += loss.item<double>();
  }
  return parallel.tells_loss() ? sum : 0;
}

template <typename AnyEngine>
void check_layout(
    World& world,
    const std::filesystem::path& folder,
    const Subject& subject,
    const Layout& layout) {
  SCOPED_TRACE(subject.name);
  const Seen alone = train_alone(folder, subject, layout);
  const int batches = layout.parallel.sizes.data * layout.parallel.sizes.shard;
  ParallelRun parallel(world, layout.parallel, layout.batches / batches);
  const auto model = load(folder, layer_context(parallel), layout);
  model->set_recomputed_layers(layout.recomputed);
  EXPECT_EQ(
      layer_context(parallel).context() != nullptr,
      layout.parallel.sizes.context > 1);
  const auto parts = parts_in(*model);
  const auto parameters = model->named_parameters();
  EngineOptions options = engine_options(layout);
  options.parallel = &parallel.mesh();
  AnyEngine engine(world, model, options);
  for (int step = 0; step < kSteps; ++step) {
    const double own =
        run_step(engine, *model, parallel, subject, layout, step);
    const at::Tensor sum = torch::full({1}, own, torch::kDouble);
    engine.sum_over_ranks(sum);
    const auto at = static_cast<size_t>(step);
    // Float64 in another order, through AdamW's division by small moments; in
    // lower precision, roundings of each layer's sums.
    const double relative = layout.compute ? 3e-2 : 1e-9;
    const double norm = engine.clip_grad_norm(0.5);
    EXPECT_NEAR(
        sum.item<double>() / layout.batches,
        alone.losses[at],
        relative * alone.losses[at]);
    EXPECT_NEAR(norm, alone.norms[at], 10 * relative * alone.norms[at]);
    engine.step();
  }
  if (layout.compute) {
    return; // AdamW makes a step of a rounding error
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        at::Tensor expected = alone.parameters.at(name);
        const auto part = parts.find(parameters[name].unsafeGetTensorImpl());
        if (part != parts.end()) {
          const int index =
              parallel.mesh().index(ParallelGroup::kTensor, world.rank());
          expected = expected.narrow(
              part->second.dim,
              part->second.split.begin(index),
              part->second.split.length(index));
        }
        EXPECT_TRUE(value.allclose(expected, 1e-6, 1e-7))
            << name << " is off by " << (value - expected).abs().max();
      });
}

std::string name_of(const Layout& layout) {
  const ParallelOptions& parallel = layout.parallel;
  std::string name = "tensor" + std::to_string(parallel.sizes.tensor) +
                     "_pipeline" + std::to_string(parallel.sizes.pipeline) +
                     "_shard" + std::to_string(parallel.sizes.shard) +
                     "_context" + std::to_string(parallel.sizes.context) +
                     "_expert" + std::to_string(parallel.sizes.expert);
  name += parallel.sequence ? "_sequence" : "";
  for (const auto& [schedule, kind] : pipeline_schedule_names()) {
    if (kind == parallel.schedule && parallel.sizes.pipeline > 1) {
      name += "_" + schedule;
    }
  }
  std::replace(name.begin(), name.end(), '-', '_');
  name += "_zero" + std::to_string(layout.zero_stage);
  name += layout.recomputed > 0 ? "_recomputed" : "";
  name += layout.placement == StatePlacement::kHost ? "_host" : "";
  return layout.compute ? name + "_" + toString(*layout.compute) : name;
}

/// Every option with every other one in some layout.
std::vector<Layout> pairs() {
  return {
      Layout{"tensor2", {{.shard = 1, .tensor = 2}}, 3, 2},
      Layout{"tensor4_sequence", {{.shard = 1, .tensor = 4}, true}},
      Layout{"pipeline2", {{.shard = 1, .pipeline = 2}}, 3, 3},
      Layout{
          "pipeline4_gpipe",
          {.sizes = {.shard = 1, .pipeline = 4}, .schedule = Kind::kGPipe},
          1},
      Layout{
          "pipeline2_interleaved",
          {.sizes = {.shard = 1, .pipeline = 2},
           .schedule = Kind::kInterleaved,
           .chunks = 2}},
      Layout{
          "pipeline2_shard2_zb",
          {.sizes = {.shard = 2, .pipeline = 2},
           .schedule = Kind::kZeroBubble}},
      Layout{
          "tensor2_shard2_sequence", {{.shard = 2, .tensor = 2}, true}, 2, 1},
      Layout{
          "tensor2_pipeline2_sequence",
          {{.shard = 1, .tensor = 2, .pipeline = 2}, true},
          3,
          5},
      Layout{
          "tensor2_pipeline2_shard2",
          {{.shard = 2, .tensor = 2, .pipeline = 2}},
          3},
      Layout{
          "tensor2_pipeline2_data2_sequence",
          {{.data = 2, .shard = 1, .tensor = 2, .pipeline = 2}, true},
          1,
          2},
      Layout{"context2", {{.shard = 1, .context = 2}}},
      Layout{
          "tensor2_pipeline2_sequence_zb",
          {.sizes = {.shard = 1, .tensor = 2, .pipeline = 2},
           .sequence = true,
           .schedule = Kind::kZeroBubble}},
      Layout{
          "pipeline2_of_3_batches",
          {.sizes = {.shard = 1, .pipeline = 2}},
          3,
          0,
          StatePlacement::kAutomatic,
          {},
          /*batches=*/3},
      Layout{
          "tensor2_shard3",
          {{.shard = 3, .tensor = 2}, true},
          3,
          2,
          StatePlacement::kAutomatic,
          {},
          /*batches=*/3},
      Layout{"expert2", {{.shard = 2, .expert = 2}}},
      Layout{
          "expert2_data2_shard2", {{.data = 2, .shard = 2, .expert = 2}}, 2, 2},
      Layout{
          "expert2_tensor2_shard2",
          {{.shard = 2, .tensor = 2, .expert = 2}},
          3,
          0,
          StatePlacement::kHost},
      Layout{
          "expert2_pipeline2_shard2",
          {{.shard = 2, .pipeline = 2, .expert = 2}},
          3,
          3},
      Layout{
          "expert2_pipeline2_context2",
          {.sizes = {.shard = 1, .pipeline = 2, .context = 2, .expert = 2},
           .schedule = Kind::kZeroBubble}},
      Layout{
          "pipeline2_context2_shard2",
          {{.shard = 2, .pipeline = 2, .context = 2}},
          3,
          2},
      Layout{
          "tensor2_pipeline2_state_on_host",
          {.sizes = {.shard = 1, .tensor = 2, .pipeline = 2},
           .cut = PipelineCut::kCost},
          3,
          2,
          StatePlacement::kHost},
      Layout{
          "tensor2_pipeline2_bfloat16",
          {{.shard = 1, .tensor = 2, .pipeline = 2}, true},
          3,
          2,
          StatePlacement::kAutomatic,
          at::kBFloat16},
      Layout{
          "tensor2_pipeline2_float16",
          {{.shard = 1, .tensor = 2, .pipeline = 2}},
          2,
          0,
          StatePlacement::kAutomatic,
          at::kHalf}};
}

/// All sizes on up to 8 ranks, with all schedules, ZeRO stages, recomputation,
/// state on the host and types.
std::vector<Layout> product() {
  std::vector<ParallelOptions> all;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 2, 4}) {
      for (const int shard : {1, 2}) {
        for (const bool sequence : {false, true}) {
          for (const auto& [name, kind] : pipeline_schedule_names()) {
            const bool is_cut = kind == Kind::kInterleaved;
            if (tensor * pipeline * shard > 8 || (sequence && tensor == 1) ||
                (pipeline == 1 && kind != Kind::kGPipe) ||
                (is_cut && pipeline * 2 > 4)) {
              continue; // 4 layers make 4 pieces
            }
            ParallelOptions options;
            options.sizes = {
                .shard = shard, .tensor = tensor, .pipeline = pipeline};
            options.sequence = sequence;
            options.schedule = kind;
            options.chunks = is_cut ? 2 : 1;
            all.push_back(options);
          }
        }
      }
    }
  }
  std::vector<Layout> layouts;
  for (const ParallelOptions& options : all) {
    for (const int stage : {1, 2, 3}) {
      for (const int recomputed : {0, 5}) {
        for (const auto placement :
             {StatePlacement::kAutomatic, StatePlacement::kHost}) {
          for (const auto compute :
               {std::optional<at::ScalarType>(),
                std::optional(at::kBFloat16),
                std::optional(at::kHalf)}) {
            Layout layout{"", options, stage, recomputed, placement, compute};
            layout.name = name_of(layout);
            layouts.push_back(layout);
          }
        }
      }
    }
  }
  // Divided sequences and experts of decoders.
  for (ParallelOptions options : all) {
    for (const auto& [context, expert] :
         {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
      options.sizes.context = context;
      options.sizes.expert = expert;
      const bool divides = options.sizes.shard * context % expert == 0;
      if (!divides || ranks_of(options.sizes) > 8 ||
          (options.sequence && expert > 1)) {
        continue;
      }
      for (const int recomputed : {0, 5}) {
        Layout layout{"", options, 3, recomputed};
        layout.name = name_of(layout);
        layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

std::vector<Layout> layouts() {
  return std::getenv("TESSERA_SOAK") != nullptr ? product() : pairs();
}

class LayoutMatrix : public ::testing::TestWithParam<Layout> {};

} // namespace

TEST_P(LayoutMatrix, IsThatOfOneRank) {
  const Layout& layout = GetParam();
  for (const Subject& subject : kSubjects) {
    if (!takes(subject, layout)) {
      continue;
    }
    const TemporaryFolder folder;
    torch::manual_seed(3);
    auto config = nlohmann::json::parse(subject.config);
    config["initializer_range"] = 0.3; // every term matters
    const auto model =
        from_config(config, {.architecture = subject.architecture});
    save_pretrained(*model, folder.path() / "model");
    testing::run_ranks(ranks_of(layout.parallel.sizes), [&](World& world) {
      const auto path = folder.path() / "model";
      subject.has_experts
          ? check_layout<ExpertEngines>(world, path, subject, layout)
          : check_layout<Engine>(world, path, subject, layout);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    LayoutMatrix,
    ::testing::ValuesIn(layouts()),
    [](const auto& info) { return info.param.name; });

} // namespace tessera::zoo
