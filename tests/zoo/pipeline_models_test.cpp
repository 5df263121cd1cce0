// SPDX-License-Identifier: Apache-2.0
// All models in pieces, from the same folders: each stage reads its layers, and
// what they compute together is held against transformers.

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "support/tied_parameter.h"
#include "tessera/engine/engine.h"
#include "tessera/pipeline/make_schedule.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "zoo/divided_models.h"
#include "zoo/model_layouts.h"

namespace tessera::zoo::pipeline_models_test {
namespace {

using tests::run_ranks;

/// The first and the last stage may both have a part of an embedding.
constexpr const char* kTied = "embeddings.tokens.weight";

struct Layout {
  PipelineShape shape;
  PipelineScheduleKind kind = PipelineScheduleKind::kOneForwardOneBackward;
  std::vector<int> piece_of_layer; ///< empty: by count
};

/// Whether the first and the last stage have a parameter.
bool both_ends_have(
    const char* parameter,
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
    if (!part->named_parameters().contains(parameter)) {
      return false;
    }
  }
  return true;
}

/// Ranks as stages, of divided layers where there are more.
class Stages {
 public:
  Stages(World& world, int tensor)
      : world_(world),
        groups_(
            world,
            ParallelMesh(
                {.shard = 1,
                 .tensor = tensor,
                 .pipeline = world.size() / tensor},
                world.size(),
                world.size()),
            torch::Device(torch::kCPU)),
        channels_(
            world,
            "stages",
            mesh().ranks(ParallelGroup::kPipeline, world.rank()),
            at::kCPU) {}

  World& world() {
    return world_;
  }
  const ParallelMesh& mesh() const {
    return groups_.mesh();
  }
  runtime::RingChannels& channels() {
    return channels_;
  }
  Communicator& group(ParallelGroup which) {
    return groups_[which];
  }
  LayerContext layers() {
    return mesh().size(ParallelGroup::kTensor) > 1
               ? LayerContext(TensorParallel{&group(ParallelGroup::kTensor)})
               : LayerContext();
  }

 private:
  World& world_;
  ParallelGroups groups_;
  runtime::RingChannels channels_;
};

/// Of the parameters of this stage; some stage has each of them.
void expect_own_gradients(
    const ModelFixture& reference,
    Model& model,
    Stages& stages) {
  const FullGradients full(model, stages.group(ParallelGroup::kTensor));
  const auto parameters = model.named_parameters();
  const NamedTensors expected = reference.tensors("grad.");
  const WeightNames names(model, model.names());
  const torch::Tensor found =
      torch::zeros({static_cast<int64_t>(expected.size())});
  int64_t number = 0;
  for (const auto& [name, gradient] : expected) {
    for (const NamedWeight& weight : names.weights()) {
      if (weight.name != name) {
        continue;
      }
      SCOPED_TRACE("gradient of " + name);
      std::vector<torch::Tensor> gradients;
      for (const std::string& native : weight.native) {
        gradients.push_back(full(parameters[native]));
      }
      expect_near(weight.assemble(gradients), gradient);
      found[number] = 1;
    }
    ++number;
  }
  stages.group(ParallelGroup::kPipeline)
      .all_reduce_sum(found, "a test's sum")
      .wait();
  EXPECT_TRUE(found.ne(0).all().item<bool>()) << found;
}

/// As pipeline_forward(); models without a loss end in the fixtures' one.
PipelineForward training_forward(Model& model, const ModelInput& input) {
  return [&](int chunk, int, const std::vector<at::Tensor>& received)
             -> std::vector<at::Tensor> {
    LayerState state = model.forward_chunk(
        chunk,
        input,
        received.empty() ? LayerState() : LayerState::from_tensors(received));
    if (model.stage().end(chunk) < model.stage().count()) {
      return state.tensors();
    }
    return {loss_of(model.finish(input, state), input)};
  };
}

/// Into an engine's shards from the folder, and from there into another one.
void check_folder(
    Stages& stages,
    const std::shared_ptr<Model>& model,
    const ModelFixture& reference,
    const std::filesystem::path& saved) {
  {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : model->parameters()) {
      parameter.zero_();
    }
  }
  model->zero_grad();
  EngineOptions options;
  options.log_memory = false;
  options.parallel = &stages.mesh();
  Engine engine(stages.world(), model, options);
  const auto report = load_pretrained(engine, *model, reference.folder());
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(report.unexpected.empty());
  save_pretrained(engine, *model, saved);
  if (stages.world().rank() == 0) {
    expect_same_bytes(reference.folder(), saved);
  }
}

void check_pipeline(
    Stages& stages,
    const std::string& name,
    const Layout& layout,
    const std::filesystem::path& saved) {
  const LayerContext context = stages.layers();
  runtime::RingChannels& channels = stages.channels();
  const ModelFixture reference(name);
  const auto model = from_pretrained(
      reference.folder(),
      {.context = context.on_stage(
           {layout.shape.stages,
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
  const bool has_loss = reference.tensors("out.").contains("loss");
  const auto losses = executor.run(
      {has_loss
           ? pipeline_forward(
                 *model, [&](int) -> const ModelInput& { return training; })
           : training_forward(*model, training)});
  for (const at::Tensor& loss : losses) {
    expect_near(loss, loss_of(outputs.front(), input).detach());
  }
  const auto parameters = model->named_parameters();
  if (both_ends_have(kTied, reference, context, layout)) {
    tests::sum_tied_gradients(parameters[kTied], channels);
  }
  expect_own_gradients(reference, *model, stages);
  check_folder(stages, model, reference, saved);
}

/// Of models and how they are cut.
struct Cut {
  std::string name;
  std::vector<int> piece_of_layer;
};

void check_cuts(const std::vector<Cut>& cuts) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    Stages stages(world, 1);
    for (size_t i = 0; i < cuts.size(); ++i) {
      SCOPED_TRACE(cuts[i].name);
      Layout layout{{2, 3}};
      layout.piece_of_layer = cuts[i].piece_of_layer;
      check_pipeline(stages, cuts[i].name, layout, saved / std::to_string(i));
    }
  });
}

} // namespace

TEST(PipelineModels, EqualTransformersInTwoStages) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    Stages stages(world, 1);
    for_every_model(ModelLayout::kPipeline, [&](const std::string& name) {
      check_pipeline(stages, name, {{2, 3}}, saved / name);
    });
    check_pipeline(
        stages,
        "gpt2",
        {{2, 3}, PipelineScheduleKind::kZeroBubble},
        saved / "zero_bubble");
  });
}

TEST(PipelineModels, EqualTransformersInTwoStagesOfDividedLayers) {
  const TemporaryFolder saved;
  run_ranks(4, [&](World& world) {
    Stages stages(world, 2);
    for_every_model(ModelLayout::kPipeline, [&](const std::string& name) {
      check_pipeline(stages, name, {{2, 2}}, saved / name);
    });
  });
}

// The encoder's layers count first; a stage that begins or ends within a half
// is given the bias, and the decoder's what the encoder made.
TEST(PipelineModels, EqualTransformersWhereverAnEncoderDecoderIsCut) {
  check_cuts(
      {{"mt5", {0, 0, 0, 1}},
       {"mt5", {0, 1, 1, 1}},
       {"t5", {0, 0, 0, 1}},
       {"t5", {0, 1, 1, 1}}});
}

// A stage of Swin with the merge or behind it; MAE's halves, and its noise.
TEST(PipelineModels, EqualTransformersWhereverModelsOfImagesAreCut) {
  check_cuts(
      {{"mae", {0, 0, 0, 1}},
       {"mae", {0, 1, 1, 1}},
       {"swin_classifier", {0, 1, 1}}});
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

} // namespace tessera::zoo::pipeline_models_test
