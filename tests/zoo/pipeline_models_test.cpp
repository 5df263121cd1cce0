// SPDX-License-Identifier: Apache-2.0
// The same models in pieces, from the same folders: each stage reads its
// layers, and what they compute together is held against transformers.

#include "support/ranks.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/tied_parameter.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/parallel_module.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo {
namespace {

using testing::run_ranks;

constexpr const char* kModels[] = {
    "bert",
    "bert_choice",
    "bert_next",
    "bert_untied",
    "chatglm",
    "cpm1",
    "cpm2",
    "glm4",
    "glm_2021",
    "gpt2",
    "gpt2_questions",
    "gpt2_tokens",
    "gptj",
    "llama3",
    "llama_classifier",
    "longformer",
    "longformer_choice",
    "longformer_classifier",
    "longformer_questions",
    "mae",
    "moco",
    "opt_350m",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "roberta_classifier",
    "swin_classifier",
    "t5",
    "t5_classifier",
    "t5_questions",
    "t5_tokens",
    "vit_classifier"};

/// The first and the last stage may both have a part of an embedding.
constexpr const char* kTied = "embeddings.tokens.weight";

struct Layout {
  int tensor = 1;
  PipelineShape shape;
  PipelineScheduleKind kind = PipelineScheduleKind::kOneForwardOneBackward;
  std::vector<int> piece_of_layer; ///< empty: by count
};

/// Of the parameters of this stage.
void expect_own_gradients(
    const ModelFixture& reference,
    Model& model,
    Communicator& tensor_ranks) {
  const auto parts = parts_in(model);
  const auto parameters = model.named_parameters();
  for (const auto& [name, expected] : reference.tensors("grad.")) {
    const WeightNames names(model, model.names());
    for (const NamedWeight& weight : names.weights()) {
      if (weight.name != name) {
        continue;
      }
      SCOPED_TRACE("gradient of " + name);
      std::vector<torch::Tensor> gradients;
      for (const std::string& ours : weight.ours) {
        const torch::Tensor& parameter = parameters[ours];
        const auto part = parts.find(parameter.unsafeGetTensorImpl());
        gradients.push_back(
            part == parts.end() ? parameter.grad()
                                : gather_parts(
                                      parameter.grad(),
                                      part->second.dim,
                                      part->second.split,
                                      tensor_ranks));
      }
      expect_near(weight.assemble(gradients), expected);
    }
  }
}

/// Whether the first and the last stage have a parameter.
bool both_ends_have(
    const char* name,
    const ModelFixture& reference,
    const LayerContext& context,
    const Layout& layout) {
  const int stages = layout.shape.stages;
  for (const int stage : {0, stages - 1}) {
    const auto part = from_pretrained(
        reference.folder(),
        {.context = context.on_stage(
             {stages, layout.shape.chunks, stage, layout.piece_of_layer}),
         .lazy = true});
    if (!part->named_parameters().contains(name)) {
      return false;
    }
  }
  return true;
}

void check_pipeline(World& world, const char* name, const Layout& layout) {
  SCOPED_TRACE(name);
  const int stages = layout.shape.stages;
  ParallelGroups groups(
      world,
      ParallelMesh(
          {.shard = 1, .tensor = layout.tensor, .pipeline = stages},
          world.size(),
          world.size()),
      torch::Device(torch::kCPU));
  RingChannels channels(
      world,
      "stages",
      groups.mesh().ranks(ParallelGroup::kPipeline, world.rank()));
  LayerContext context;
  Communicator& tensor_ranks = groups[ParallelGroup::kTensor];
  if (layout.tensor > 1) {
    context = LayerContext(TensorParallel{&tensor_ranks});
  }
  const ModelFixture reference(name);
  const auto model = from_pretrained(
      reference.folder(),
      {.context = context.on_stage(
           {stages,
            layout.shape.chunks,
            channels.index(),
            layout.piece_of_layer})});
  PipelineExecutor executor(
      make_schedule(layout.kind, layout.shape), &channels);
  const ModelInput input = reference.input();
  const auto outputs = evaluate_pipeline(executor, *model, {input, input});
  ASSERT_EQ(outputs.size(), model->stage().has_last() ? 2U : 0U);
  for (const ModelOutput& output : outputs) {
    expect_outputs(reference, output);
  }
  // The same batch each time: the mean has the gradients of one.
  ModelInput training = input;
  training.hidden_states = false;
  const auto losses = executor.run({pipeline_forward(
      *model, [&](int) -> const ModelInput& { return training; })});
  for (const at::Tensor& loss : losses) {
    expect_near(loss, outputs.front().loss.detach());
  }
  const auto parameters = model->named_parameters();
  if (both_ends_have(kTied, reference, context, layout)) {
    sum_tied_gradients(parameters[kTied], channels);
  }
  expect_own_gradients(reference, *model, tensor_ranks);
}

} // namespace

TEST(PipelineModels, EqualTransformersInTwoStages) {
  run_ranks(2, [](World& world) {
    for (const char* name : kModels) {
      check_pipeline(world, name, {1, {2, 3}});
    }
    check_pipeline(
        world, "gpt2", {1, {2, 3}, PipelineScheduleKind::kZeroBubble});
  });
}

// The encoder's layers count first; a stage that begins or ends within a half
// is given the bias, and the decoder's what the encoder made.
TEST(PipelineModels, EqualTransformersWhereverAnEncoderDecoderIsCut) {
  run_ranks(2, [](World& world) {
    for (const char* name : {"mt5", "t5"}) {
      for (const std::vector<int>& pieces :
           {std::vector<int>{0, 0, 0, 1}, {0, 1, 1, 1}}) {
        Layout layout{1, {2, 3}};
        layout.piece_of_layer = pieces;
        check_pipeline(world, name, layout);
      }
    }
  });
}

TEST(PipelineModels, EqualTransformersInTwoStagesOfDividedLayers) {
  run_ranks(4, [](World& world) {
    for (const char* name : kModels) {
      check_pipeline(world, name, {2, {2, 2}});
    }
  });
}

// A stage of Swin with the merge or behind it; MAE's halves, and its noise.
TEST(PipelineModels, EqualTransformersWhereverModelsOfImagesAreCut) {
  run_ranks(2, [](World& world) {
    for (const auto& [name, pieces] :
         {std::pair("mae", std::vector<int>{0, 0, 0, 1}),
          std::pair("mae", std::vector<int>{0, 1, 1, 1}),
          std::pair("swin_classifier", std::vector<int>{0, 1, 1})}) {
      Layout layout{1, {2, 3}};
      layout.piece_of_layer = pieces;
      check_pipeline(world, name, layout);
    }
  });
}

TEST(PipelineModels, SayWhatIsNotHere) {
  const ModelFixture reference("gpt2");
  const auto last = from_pretrained(
      reference.folder(), {.context = LayerContext().on_stage({2, 1, 1, {}})});
  EXPECT_FALSE(
      last->named_parameters().contains("embeddings.positions.weight"));
  EXPECT_THROW(last->forward(reference.input()), Error);
  const auto first = from_pretrained(
      reference.folder(), {.context = LayerContext().on_stage({2, 1, 0, {}})});
  EXPECT_THROW(first->finish(reference.input(), {}), Error);
  EXPECT_THROW(
      from_pretrained(
          reference.folder(),
          {.context = LayerContext().on_stage({100, 1, 0, {}})}),
      Error);
}

} // namespace tessera::zoo
