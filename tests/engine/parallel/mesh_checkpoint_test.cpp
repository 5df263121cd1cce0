// SPDX-License-Identifier: Apache-2.0
// A checkpoint that ranks with parts of a model wrote loads under any other
// division of it, on one rank with all of it too, and training goes on.
#include "engine/parallel/mesh_checkpoint.h"
#include "tessera/engine/optim/state_names.h"
#include "tessera/runtime/io/safetensors.h"

#include <torch/serialize.h>

#include <cstring>

namespace tessera::engine::mesh_checkpoint_test {

namespace {

using namespace tests;

constexpr int kSavedAt = 2;
constexpr int kSteps = 4;

/// What the uninterrupted run of one rank has seen.
void train_alone(const TemporaryFolder& folder, bool tied) {
  run_ranks(1, [&](World& world) {
    MeshJob job(world, kMeshLayouts[0], mesh_options(), tied);
    const at::Tensor seen = torch::zeros({kSteps, 2}, torch::kDouble);
    for (int step = 0; step < kSteps; ++step) {
      const auto [loss, norm] = job.train(step);
      seen[step][0] = loss;
      seen[step][1] = norm;
    }
    torch::save(seen, (folder / "seen").string());
    job.engine().save_weights(folder / "after.safetensors");
  });
}

/// Trains on to the end and holds what is seen against one rank. Float64 in
/// another order, through AdamW's division by small second moments.
void expect_as_alone(
    MeshJob& job,
    const TemporaryFolder& folder,
    World& world,
    const std::string& label) {
  at::Tensor seen;
  torch::load(seen, (folder / "seen").string());
  for (int step = kSavedAt; step < kSteps; ++step) {
    const auto [loss, norm] = job.train(step);
    EXPECT_NEAR(loss, seen[step][0].item<double>(), 1e-9) << label;
    EXPECT_NEAR(norm, seen[step][1].item<double>(), 1e-9) << label;
  }
  const auto file = folder / (label + ".safetensors");
  job.engine().save_weights(file);
  if (world.rank() != 0) {
    return;
  }
  const auto got = runtime::SafetensorsFile::open(file);
  const auto want =
      runtime::SafetensorsFile::open(folder / "after.safetensors");
  ASSERT_EQ(got.entries().size(), want.entries().size());
  for (const runtime::SafetensorsEntry& entry : want.entries()) {
    if (entry.dtype != runtime::SafetensorsDtype::kF64) {
      continue;
    }
    const auto values = [](const runtime::SafetensorsEntry& from) {
      const at::Tensor tensor = torch::empty(from.shape, torch::kDouble);
      std::memcpy(tensor.data_ptr(), from.data.data(), from.data.size());
      return tensor;
    };
    EXPECT_TRUE(
        torch::allclose(values(got.at(entry.name)), values(entry), 1e-7, 1e-8))
        << label << ": " << entry.name;
  }
}

/// The job's first steps, a checkpoint, and what comes after it, which a second
/// engine of the same layout repeats bit for bit.
void save_from(
    World& world,
    const MeshLayout& layout,
    const EngineOptions& options,
    bool tied,
    const TemporaryFolder& folder) {
  MeshJob job(world, layout, options, tied);
  for (int step = 0; step < kSavedAt; ++step) {
    job.train(step);
  }
  const auto checkpoint = job.engine().save(folder / "saved");
  std::vector<MeshJob::Step> seen;
  for (int step = kSavedAt; step < kSteps; ++step) {
    seen.push_back(job.train(step));
  }
  job.engine().save(folder / "expected");

  MeshJob again(world, layout, options, tied, /*seed=*/6);
  again.train(0);
  EXPECT_EQ(again.engine().load(checkpoint), kSavedAt);
  for (int step = kSavedAt; step < kSteps; ++step) {
    const auto [loss, norm] = again.train(step);
    EXPECT_EQ(loss, seen[static_cast<size_t>(step - kSavedAt)].loss);
    EXPECT_EQ(norm, seen[static_cast<size_t>(step - kSavedAt)].norm);
  }
  again.engine().save(folder / "repeated");
  if (world.rank() == 0) {
    expect_same_checkpoints(
        folder / "repeated/step-000004", folder / "expected/step-000004");
    const auto manifest = read_manifest(checkpoint);
    int64_t numel = 0;
    for (const auto& [name, parameter] : manifest.parameters) {
      int64_t product = 1;
      for (const int64_t size : parameter.sizes) {
        product *= size;
      }
      numel += product;
    }
    EXPECT_EQ(saved_numel(manifest, kMasterState), numel) << "written twice";
  }
}

/// What tensor-parallel ranks draw outside of divided layers.
void expect_agreed_generators(MeshJob& job) {
  Communicator& group = job.groups()[ParallelGroup::kTensor];
  const at::Tensor self_tensor = torch::rand({1}, torch::kDouble);
  const at::Tensor all = torch::empty({group.size()}, torch::kDouble);
  group.all_gather(all, self_tensor, "what ranks draw").wait();
  EXPECT_EQ(all.min().item<double>(), all.max().item<double>());
}

struct Case {
  int saving;
  bool tied = false;
  bool low_precision = false;
};

class MeshCheckpoint : public ::testing::TestWithParam<Case> {};

} // namespace

TEST_P(MeshCheckpoint, LoadsUnderEveryLayout) {
  const Case& test = GetParam();
  const MeshLayout& saving = kMeshLayouts[test.saving];
  EngineOptions options = mesh_options();
  if (test.low_precision) {
    options.precision.parameters = at::kBFloat16;
  }
  const TemporaryFolder folder;
  if (!test.low_precision) {
    train_alone(folder, test.tied);
  }
  run_ranks(saving.world_size(), [&](World& world) {
    save_from(world, saving, options, test.tied, folder);
  });
  for (const MeshLayout& loading : kMeshLayouts) {
    SCOPED_TRACE(loading.name);
    run_ranks(loading.world_size(), [&](World& world) {
      MeshJob job(world, loading, options, test.tied, /*seed=*/6);
      torch::manual_seed(7); // of ranks that have no generator to take over
      EXPECT_EQ(job.engine().load(folder / "saved"), kSavedAt);
      expect_agreed_generators(job);
      const std::string again = std::string("again.") + loading.name;
      job.engine().save(folder / again);
      if (world.rank() == 0) {
        expect_same_checkpoints(
            folder / again / "step-000002", folder / "saved/step-000002");
      }
      if (test.low_precision) {
        job.train(kSavedAt); // sums of bfloat16 in another order: no numbers
      } else {
        expect_as_alone(job, folder, world, loading.name);
      }
    });
  }
}

// Rows and columns of second moments, and moments per element.
TEST(MeshCheckpointStates, OfAdafactorGoWithTheStages) {
  EngineOptions options = mesh_options();
  options.optimizer.rule = AdafactorOptions{};
  const TemporaryFolder folder;
  const MeshLayout& stages = kMeshLayouts[3];
  run_ranks(stages.world_size(), [&](World& world) {
    save_from(world, stages, options, false, folder);
  });
  run_ranks(1, [&](World& world) {
    MeshJob job(world, kMeshLayouts[0], options, false, /*seed=*/6);
    EXPECT_EQ(job.engine().load(folder / "saved"), kSavedAt);
    job.engine().save(folder / "again");
    EXPECT_FALSE(
        names_of_full_tensors(read_manifest(folder / "again/step-000002"))
            .empty());
    expect_same_checkpoints(
        folder / "again/step-000002", folder / "saved/step-000002");
    job.train(kSavedAt);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    MeshCheckpoint,
    ::testing::Values(
        Case{0},
        Case{1},
        Case{2},
        Case{3},
        Case{4},
        Case{5},
        Case{0, true},
        Case{3, true},
        Case{4, true},
        Case{2, false, true},
        Case{4, false, true}),
    [](const auto& info) {
      return std::string(kMeshLayouts[info.param.saving].name) +
             (info.param.tied ? "_tied" : "") +
             (info.param.low_precision ? "_bfloat16" : "");
    });

} // namespace tessera::engine::mesh_checkpoint_test
