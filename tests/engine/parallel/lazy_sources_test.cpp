// SPDX-License-Identifier: Apache-2.0
// What lazy parameters are filled from is the same on all ranks that have parts
// of one model, or an error on all of them.
#include "engine/parallel/mesh_checkpoint.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/sharding/weights/load_weights.h"

#include <filesystem>
#include <functional>
#include <string>

namespace tessera::engine::lazy_sources_test {

namespace {

using namespace tests;
namespace fs = std::filesystem;

const MeshLayout kTwoShards{"shard2", {.shard = 2}};
const MeshLayout kTwoParts{"tensor2", {.shard = 1, .tensor = 2}};
const MeshLayout kTwoStages{"pipeline2", {.shard = 1, .pipeline = 2}};
const MeshLayout kAllAxes{
    "tensor2_pipeline2_shard2",
    {.shard = 2, .tensor = 2, .pipeline = 2}};

/// Calls `fill` with a lazy model of every rank, and wraps it.
void wrap_lazy(
    const MeshLayout& layout,
    const std::function<void(const ParallelMesh&, int rank, MeshNet&)>& fill,
    const std::function<void(const std::function<void()>& wrap)>& expect) {
  run_ranks(layout.world_size(), [&](World& world) {
    const ParallelMesh mesh(layout.sizes, world.size(), world.size());
    ParallelGroups groups(world, mesh, at::kCPU);
    const int stage = mesh.index(ParallelGroup::kPipeline, world.rank());
    const int stages = mesh.size(ParallelGroup::kPipeline);
    MeshNet net(
        TensorParallel{&groups[ParallelGroup::kTensor], false},
        stage * kMeshBlocks / stages,
        (stage + 1) * kMeshBlocks / stages,
        false);
    fill(mesh, world.rank(), net);
    EngineOptions options = mesh_options();
    options.parallel = &mesh;
    expect([&] { const Engine engine(world, net.ptr(), options); });
  });
}

void expect_wraps(
    const MeshLayout& layout,
    const std::function<void(const ParallelMesh&, int rank, MeshNet&)>& fill) {
  wrap_lazy(layout, fill, [](const std::function<void()>& wrap) { wrap(); });
}

void expect_refused_wrap(
    const MeshLayout& layout,
    const std::function<void(const ParallelMesh&, int rank, MeshNet&)>& fill,
    std::initializer_list<const char*> parts) {
  wrap_lazy(layout, fill, [&](const std::function<void()>& wrap) {
    expect_error(wrap, parts);
  });
}

/// Writes the model of a seed.
void write_model(const fs::path& file, int seed) {
  run_ranks(1, [&](World& world) {
    MeshJob job(world, kMeshLayouts[0], mesh_options(), false, seed);
    job.engine().save_weights(file);
  });
}

/// A copy with the tensors whose names begin so.
void write_some(
    const fs::path& from,
    const fs::path& to,
    std::initializer_list<const char*> begins) {
  const auto file = runtime::SafetensorsFile::open(from);
  std::vector<runtime::SafetensorsSpec> specs;
  for (const auto& entry : file.entries()) {
    for (const char* begin : begins) {
      if (entry.name.starts_with(begin)) {
        specs.push_back({entry.name, entry.dtype, entry.shape});
      }
    }
  }
  runtime::SafetensorsWriter writer(to, specs);
  for (const auto& spec : specs) {
    writer.write(spec.name, file.at(spec.name).data);
  }
  writer.commit();
}

} // namespace

TEST(LazySources, SeedsOfInitParametersAreThoseOfAllParts) {
  const auto by_rank = [](const ParallelMesh&, int rank, MeshNet& net) {
    init_parameters(*net, rank == 0 ? 5 : 6);
  };
  expect_refused_wrap(
      kTwoShards,
      by_rank,
      {"the module on rank 1 differs from rank 0's",
       "init_parameters() with the seed 5",
       "init_parameters() with the seed 6"});
  expect_refused_wrap(
      kTwoParts,
      by_rank,
      {"is filled from another source on tensor-parallel rank 1 (init_parameters() with the seed 6) than on rank 0 (init_parameters() with the seed 5)"});
  expect_wraps(kTwoStages, by_rank); // other layers may have other seeds
  expect_wraps(kAllAxes, [](const ParallelMesh&, int, MeshNet& net) {
    init_parameters(*net, 5);
  });
}

// Ranks 4 to 7 have the second stage; ranks 5 and 7 its second parts.
TEST(LazySources, AllRanksOfTheJobGetTheError) {
  for (const int other : {0, 5}) {
    expect_refused_wrap(
        kAllAxes,
        [&](const ParallelMesh&, int rank, MeshNet& net) {
          init_parameters(*net, rank == other ? 6 : 5);
        },
        {"init_parameters() with the seed 5", "with the seed 6"});
  }
}

TEST(LazySources, FilesAreThoseOfAllStages) {
  const TemporaryFolder folder;
  const fs::path first = folder / "first.safetensors";
  const fs::path second = folder / "second.safetensors";
  write_model(first, 5);
  write_model(second, 8);
  const auto by_rank = [&](const ParallelMesh&, int rank, MeshNet& net) {
    load_weights(*net, rank == 0 ? first : second, {.strict = false});
  };
  expect_refused_wrap(
      kTwoStages,
      by_rank,
      {"not the same on all pipeline stages", "rank 1", "rank 0"});
  expect_refused_wrap(
      kTwoParts,
      by_rank,
      {"is filled from another source on tensor-parallel rank 1 (the weights in their files: ",
       "than on rank 0 (the weights in their files: "});
  // Copies, and files that have the tensors of one stage alone, are all right.
  const fs::path copy = folder / "copy.safetensors";
  fs::copy_file(first, copy);
  expect_wraps(kTwoStages, [&](const ParallelMesh&, int rank, MeshNet& net) {
    load_weights(*net, rank == 0 ? first : copy, {.strict = false});
  });
  const fs::path begin = folder / "begin.safetensors";
  const fs::path end = folder / "end.safetensors";
  write_some(first, begin, {"embedding", "block0", "number0"});
  write_some(
      first, end, {"block1", "block2", "number1", "number2", "norm", "head"});
  expect_wraps(kTwoStages, [&](const ParallelMesh&, int rank, MeshNet& net) {
    load_weights(*net, rank == 0 ? begin : end);
  });
}

// wrap() gives ranks with the same layers the seed of the first, not those that
// have other parts of them.
TEST(LazySources, SeedsOfLazyAreThoseOfAllParts) {
  const auto wrap_lazy_stack = [](World& world,
                                  const ParallelMesh* mesh,
                                  uint64_t seed,
                                  bool broadcasts) {
    auto stack = lazy([] { return Stack(); }, {.seed = seed, .min_numel = 0});
    EngineOptions options = group_per_layer();
    options.parallel = mesh;
    options.sharding.broadcast_from_rank0 = broadcasts;
    const Engine engine(world, stack.ptr(), options);
  };
  run_ranks(2, [&](World& world) {
    const auto seed = static_cast<uint64_t>(world.rank() + 3);
    wrap_lazy_stack(world, nullptr, seed, true);
    wrap_lazy_stack(world, nullptr, 3, false);
    expect_error(
        [&] { wrap_lazy_stack(world, nullptr, seed, false); },
        {"'first.weight' has the seed 3 on rank 0 and 4 on rank 1",
         "LazyOptions::seed"});
  });
  run_ranks(2, [&](World& world) {
    const ParallelMesh mesh({.shard = 1, .tensor = 2}, 2, 2);
    const auto seed = static_cast<uint64_t>(world.rank() + 3);
    wrap_lazy_stack(world, &mesh, 3, true);
    expect_error(
        [&] { wrap_lazy_stack(world, &mesh, seed, true); },
        {"'first.weight' has the seed 3 on rank 0 and 4 on rank 1"});
  });
}

// The first difference ends wrap() on ranks with other parts of the model too.
TEST(LazySources, ModulesThatDifferAreTheErrorOfAllParts) {
  expect_refused_wrap(
      {"tensor2_shard2", {.shard = 2, .tensor = 2}},
      [](const ParallelMesh&, int rank, MeshNet& net) {
        init_parameters(*net, 5);
        if (rank == 3) {
          net->norm->weight.requires_grad_(false);
        }
      },
      {"the module on rank 3 differs from rank 1's", "'norm.weight'"});
}

} // namespace tessera::engine::lazy_sources_test
