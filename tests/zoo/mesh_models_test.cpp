// SPDX-License-Identifier: Apache-2.0
// Models of which each rank has some layers, parts of them, and shards of
// those: folders are read into them and written from them as whole models.

#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/io/remove_tree.h"
#include "zoo/model_fixture.h"

namespace tessera::zoo::mesh_models_test {
namespace {

using tests::run_ranks;

/// Tied and untied, fused and transposed weights, uneven heads.
constexpr const char* kModels[] = {"gpt2", "llama3", "opt_350m", "qwen2"};

EngineOptions engine_options(const ParallelMesh& mesh) {
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 1000;
  options.parallel = &mesh;
  return options;
}

std::shared_ptr<Model> stage_of(
    const ModelFixture& reference,
    ParallelGroups& groups,
    int rank) {
  const ParallelMesh& mesh = groups.mesh();
  LayerContext context;
  if (mesh.size(ParallelGroup::kTensor) > 1) {
    context = LayerContext(TensorParallel{&groups[ParallelGroup::kTensor]});
  }
  return from_pretrained(
      reference.folder(),
      {.context = context.on_stage(
           {mesh.size(ParallelGroup::kPipeline),
            1,
            mesh.index(ParallelGroup::kPipeline, rank),
            {}})});
}

void check_folders(World& world, const ParallelSizes& sizes) {
  const ParallelMesh mesh(sizes, world.size(), world.size());
  ParallelGroups groups(world, mesh, torch::Device(torch::kCPU));
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const ModelFixture reference(name);
    const auto model = stage_of(reference, groups, world.rank());
    {
      const torch::NoGradGuard no_grad;
      for (const torch::Tensor& parameter : model->parameters()) {
        parameter.zero_(); // what the folder says is read again
      }
    }
    Engine engine(world, model, engine_options(mesh));
    const auto report = load_pretrained(engine, *model, reference.folder());
    EXPECT_TRUE(report.missing.empty());
    EXPECT_TRUE(report.unexpected.empty());
    const auto folder =
        std::filesystem::temp_directory_path() /
        ("tessera-mesh-models-" + std::string(name) + "-" +
         std::to_string(sizes.tensor) + std::to_string(sizes.pipeline));
    save_pretrained(engine, *model, folder);
    if (world.rank() == 0) {
      expect_same_bytes(reference.folder(), folder);
      runtime::remove_tree(folder);
    }
    EXPECT_THROW(save_pretrained(engine, *model, "/proc/nowhere/model"), Error);
  }
}

} // namespace

TEST(MeshModels, ReadAndWriteFoldersInStages) {
  run_ranks(2, [](World& world) {
    check_folders(world, {.shard = 1, .pipeline = 2});
  });
}

TEST(MeshModels, ReadAndWriteFoldersInDividedLayers) {
  run_ranks(
      4, [](World& world) { check_folders(world, {.shard = 2, .tensor = 2}); });
}

TEST(MeshModels, ReadAndWriteFoldersInStagesOfDividedLayers) {
  run_ranks(8, [](World& world) {
    check_folders(world, {.shard = 2, .tensor = 2, .pipeline = 2});
  });
}

// A folder of a larger model is not taken for one of more stages.
TEST(MeshModels, NameWhatNoStageHas) {
  run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.shard = 1, .pipeline = 2}, 2, 2);
    ParallelGroups groups(world, mesh, torch::Device(torch::kCPU));
    const ModelFixture reference("gpt2");
    const auto model = stage_of(reference, groups, world.rank());
    Engine engine(world, model, engine_options(mesh));
    try {
      load_pretrained(engine, *model, ModelFixture("llama3").folder());
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos)
          << error.what();
    }
  });
}

} // namespace tessera::zoo::mesh_models_test
