// SPDX-License-Identifier: Apache-2.0
// All models over two ranks, from the same folders: layers divided (tensor
// parallelism, with and without parts of sequences), and parameters divided by
// the engine (ZeRO-3). What they compute is held against transformers, as the
// plain models are.

#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "zoo/divided_models.h"
#include "zoo/model_layouts.h"

namespace tessera::zoo::parallel_models_test {
namespace {

using tests::run_ranks;

/// @param saved a folder that both ranks know.
void check_tensor_parallel(
    World& world,
    const TensorParallel& tp,
    const std::string& name,
    const TemporaryFolder& saved) {
  const ModelFixture reference(name);
  const auto model =
      from_pretrained(reference.folder(), {.context = LayerContext(tp)});
  const ModelInput input = reference.input();
  const ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  loss_of(output, input).backward();
  expect_gradients(reference, *model, FullGradients(*model, *tp.group));

  if (output.loss.defined() && input.labels.defined() &&
      input.labels.dim() == 2) { // Without the logits of the whole vocabulary.
    ModelInput loss_only = input;
    loss_only.loss_only = true;
    expect_near(model->forward(loss_only).loss, output.loss);
  }
  save_pretrained(*model, saved / name);
  if (world.rank() == 0) {
    expect_same_bytes(reference.folder(), saved / name);
  }
}

void check_divided_layers(ModelLayout layout) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    ParallelGroups groups(
        world,
        ParallelMesh({.shard = 1, .tensor = 2}, 2, 2),
        torch::Device(torch::kCPU));
    const TensorParallel tp{
        &groups[ParallelGroup::kTensor], layout == ModelLayout::kSequence};
    for_every_model(layout, [&](const std::string& name) {
      check_tensor_parallel(world, tp, name, saved);
    });
  });
}

void check_engine(
    World& world,
    const std::string& name,
    const TemporaryFolder& saved) {
  const ModelFixture reference(name);
  const auto model = from_pretrained(reference.folder(), {.lazy = true});
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 1000;
  Engine engine(world, model, options);
  const ModelInput input = reference.input();
  ModelOutput output = model->forward(input);
  expect_outputs(reference, output);
  engine.backward(loss_of(output, input));
  // Both ranks had the same batch: the average is each one's.
  expect_gradients(reference, *model, [&](const torch::Tensor& parameter) {
    return engine.grad(parameter);
  });
  output = {};
  // Something else, and the folder's again.
  engine.step();
  load_pretrained(engine, *model, reference.folder());
  save_pretrained(engine, *model, saved / name);
  if (world.rank() == 0) {
    expect_same_bytes(reference.folder(), saved / name);
  }
}

} // namespace

TEST(ParallelModels, EqualTransformersWithLayersDivided) {
  check_divided_layers(ModelLayout::kTensor);
}

TEST(ParallelModels, EqualTransformersWithSequencesDivided) {
  check_divided_layers(ModelLayout::kSequence);
}

TEST(ParallelModels, EqualTransformersWithParametersDivided) {
  const TemporaryFolder saved;
  run_ranks(2, [&](World& world) {
    for_every_model(ModelLayout::kShards, [&](const std::string& name) {
      check_engine(world, name, saved);
    });
  });
}

TEST(ParallelModels, SayOnEveryRankThatTheDiskFailed) {
  run_ranks(2, [](World& world) {
    const ModelFixture reference("gpt2");
    const auto model = from_pretrained(reference.folder(), {.lazy = true});
    EngineOptions options;
    options.log_memory = false;
    Engine engine(world, model, options);
    EXPECT_THROW(save_pretrained(engine, *model, "/proc/nowhere/model"), Error);
  });
}

} // namespace tessera::zoo::parallel_models_test
