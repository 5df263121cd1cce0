// SPDX-License-Identifier: Apache-2.0
// A model that knows nothing of Tessera, divided by a tensor plan and by ZeRO:
// the numbers of one rank with all batches.
#include "sharding/tensor_parallel/plain_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::engine::planned_training_test {

namespace {

using enum TensorDivision;

constexpr int kSteps = 3;
constexpr int kBatches = 2;
const PlainModelOptions kModel{.tied = true};

PlainModel model_of() {
  torch::manual_seed(6);
  PlainModel model(kModel);
  model->to(torch::kDouble);
  model->head->weight = model->embed->weight;
  return model;
}

struct Seen {
  std::vector<double> losses; ///< of the batches of this rank
  std::vector<double> norms;
};

/// Batches first, first + every, ... of each step.
Seen train(Engine& engine, PlainModel& model, int first, int every) {
  Seen seen;
  for (int step = 0; step < kSteps; ++step) {
    double sum = 0;
    for (int i = first; i < kBatches; i += every) {
      torch::manual_seed(static_cast<uint64_t>(10 * step + i));
      const at::Tensor tokens = torch::randint(kModel.vocab, {2, 9}, at::kLong);
      const at::Tensor loss = model->forward(
          tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8).contiguous());
      sum += loss.item<double>();
      engine.backward(loss * every / kBatches);
    }
    seen.losses.push_back(sum);
    seen.norms.push_back(engine.clip_grad_norm(0.5));
    engine.step();
  }
  return seen;
}

EngineOptions options_of(int zero_stage) {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.sharding.zero_stage = zero_stage;
  options.optimizer.lr = 1e-2;
  options.log_memory = false;
  return options;
}

std::map<std::string, at::Tensor> values_of(Engine& engine) {
  std::map<std::string, at::Tensor> values;
  engine.for_each_parameter([&](const std::string& name, const at::Tensor& v) {
    values[name] = v.clone();
  });
  return values;
}

} // namespace

// Float64 in another order, through AdamW's division by small second moments.
TEST(PlannedTraining, IsThatOfOneRank) {
  for (const int zero_stage : {1, 3}) {
    tests::run_ranks(4, [zero_stage](World& world) {
      EngineOptions options = options_of(zero_stage);
      World one(0, 1, 0, nullptr, {});
      PlainModel full = model_of();
      Engine alone(one, full.ptr(), options);
      const Seen expected = train(alone, full, 0, 1);
      const auto full_tensors = values_of(alone);

      const ParallelMesh mesh({.shard = 2, .tensor = 2}, 4, 4);
      ParallelGroups groups(world, mesh, at::kCPU);
      PlainModel model = model_of();
      apply_tensor_plan(
          *model,
          {{"embed", kVocab},
           {"layers.*.attention.output", kRow, 4},
           {"layers.*.attention.*", kColumn, 4},
           {"layers.*.mlp.0", kColumn},
           {"layers.*.mlp.2", kRow},
           {"head", kColumnGathered}},
          {&groups[ParallelGroup::kTensor]});
      options.parallel = &mesh;
      Engine engine(world, model.ptr(), options);
      const int index = mesh.index(ParallelGroup::kBatches, world.rank());
      const Seen seen = train(engine, model, index, 2);
      EXPECT_LT(expected.losses.back(), expected.losses.front());
      for (size_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(seen.norms[step], expected.norms[step], 1e-9) << step;
      }
      for (const auto& [name, value] : values_of(engine)) {
        EXPECT_TRUE(value.allclose(full_tensors.at(name), 1e-7, 1e-8)) << name;
      }
    });
  }
}

// What every loop does that was written for data parallelism alone. The model
// has norms, which both ranks have whole.
TEST(PlannedTraining, OtherBatchesWithinATensorGroupAreAnError) {
  for (const int first_step : {0, 1}) {
    tests::run_ranks(4, [first_step](World& world) {
      const ParallelMesh mesh({.shard = 2, .tensor = 2}, 4, 4);
      ParallelGroups groups(world, mesh, at::kCPU);
      PlainModel model = model_of();
      apply_tensor_plan(
          *model,
          {{"layers.*.mlp.0", kColumn}, {"layers.*.mlp.2", kRow}},
          {&groups[ParallelGroup::kTensor]});
      EngineOptions options = options_of(3);
      options.parallel = &mesh;
      Engine engine(world, model.ptr(), options);
      const int index = mesh.index(ParallelGroup::kBatches, world.rank());
      for (int step = 0; step <= first_step; ++step) {
        const int batch = step < first_step ? index : world.rank();
        torch::manual_seed(static_cast<uint64_t>(10 * step + batch));
        const at::Tensor tokens =
            torch::randint(kModel.vocab, {2, 9}, at::kLong);
        engine.backward(model->forward(
            tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8).contiguous()));
        if (step < first_step) {
          engine.step();
        }
      }
      const auto before = values_of(engine);
      expect_error(
          [&] { engine.step(); },
          {world.rank() < 2 ? "ranks [0, 1], which divide layers"
                            : "ranks [2, 3], which divide layers",
           "different gradients",
           "the same batch",
           "ParallelGroup::kBatches",
           "engine.batches"});
      for (const auto& [name, value] : values_of(engine)) {
        EXPECT_TRUE(value.equal(before.at(name))) << name;
      }
    });
  }
}

TEST(PlannedTraining, ShardRanksBesideAMeshAreAnError) {
  tests::run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.shard = 2}, 2, 2);
    PlainModel model = model_of();
    EngineOptions options = options_of(3);
    options.parallel = &mesh;
    options.sharding.shard_ranks = 1;
    expect_error(
        [&] { Engine(world, model.ptr(), options); },
        {"sharding.shard_ranks is 1",
         "EngineOptions::parallel",
         "parallel.shard"});
  });
}

TEST(PlannedTraining, WithoutTheMeshIsAnError) {
  tests::run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.tensor = 2}, 2, 2);
    ParallelGroups groups(world, mesh, at::kCPU);
    PlainModel model = model_of();
    apply_tensor_plan(
        *model,
        {{"layers.*.mlp.0", kColumn}, {"layers.*.mlp.2", kRow}},
        {&groups[ParallelGroup::kTensor]});
    expect_error(
        [&] { Engine(world, model.ptr(), options_of(3)); },
        {"mlp.0.weight' is partitioned over tensor-parallel ranks",
         "EngineOptions::parallel is null"});
  });
}

TEST(PlannedTraining, WithAnotherMeshIsAnError) {
  tests::run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.tensor = 2}, 2, 2);
    const ParallelMesh other({.shard = 2}, 2, 2);
    ParallelGroups groups(world, mesh, at::kCPU);
    PlainModel model = model_of();
    apply_tensor_plan(
        *model,
        {{"layers.*.mlp.0", kColumn}, {"layers.*.mlp.2", kRow}},
        {&groups[ParallelGroup::kTensor]});
    EngineOptions options = options_of(3);
    options.parallel = &other;
    expect_error(
        [&] { Engine(world, model.ptr(), options); },
        {"mlp.0.weight' is part",
         "of 2 over tensor-parallel ranks",
         "EngineOptions::parallel, where tensor is 1"});
    // Groups of ranks would be made of meshes that differ.
    options.parallel = world.rank() == 0 ? &mesh : &other;
    expect_error(
        [&] { Engine(world, model.ptr(), options); },
        {"wrap: the option EngineOptions::parallel is",
         "tensor 2 on rank 0",
         "tensor 1 on rank 1"});
  });
}

} // namespace tessera::engine::planned_training_test
