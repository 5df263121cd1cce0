// SPDX-License-Identifier: Apache-2.0
// A checkpoint has one value of a state that is not per rank: ranks that have
// others get an error, all of them, before anything is written.
#include "engine/checkpoint/checkpoint_support.h"
#include "engine/parallel/mesh_checkpoint.h"

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::engine::state_agreement_test {

namespace {

using namespace tests;

/// A position in the data, and a tensor.
class Counter : public Checkpointable {
 public:
  explicit Counter(int64_t count, bool per_rank = false)
      : count(count), per_rank_(per_rank) {}

  std::string name() const override {
    return "counter";
  }
  bool is_per_rank() const override {
    return per_rank_;
  }
  CheckpointState save_state() const override {
    return {
        {{"epoch", 2}, {"seen", {{"samples", count}, {"names", {"a", "b"}}}}},
        {{"mean", mean}}};
  }
  void load_state(const CheckpointState& state) override {
    count = state.values.at("seen").at("samples");
    mean = state.tensors.at("mean").clone();
  }

  int64_t count;
  at::Tensor mean = torch::ones({2, 3});

 private:
  bool per_rank_;
};

EngineOptions options_with_snapshot() {
  auto options = group_per_layer();
  options.save_in_background = true;
  return options;
}

/// Both ways to save fail on this rank with all `parts`, and leave nothing.
void expect_refused_save(
    Engine& engine,
    const TemporaryFolder& folder,
    const std::vector<Checkpointable*>& states,
    std::initializer_list<const char*> parts) {
  expect_error([&] { engine.save(folder / "run", states); }, parts);
  expect_error(
      [&] { engine.save_in_background(folder / "run", states).wait(); }, parts);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

/// On 3 ranks, the last of which is another.
void run_with_engine(
    const std::function<void(World&, Engine&, const TemporaryFolder&)>& body) {
  const TemporaryFolder folder;
  run_ranks(3, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_with_snapshot());
    train_steps(engine, net, 1);
    body(world, engine, folder);
  });
}

} // namespace

TEST(StateAgreement, ValuesThatOneRankHasOtherwiseAreNamed) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    Counter counter(world.rank() == 2 ? 7 : 5);
    expect_refused_save(
        engine,
        folder,
        {&counter},
        {"the state 'counter' is not the same on all ranks",
         "seen.samples is 5 on rank 0 and 7 on rank 2",
         "is_per_rank()",
         "nothing was written"});
    counter.count = 6;
    engine.save(folder / "run", {&counter});
    Counter loaded(0);
    engine.load(folder / "run", {&loaded});
    EXPECT_EQ(loaded.count, 6);
  });
}

TEST(StateAgreement, SoAreTensors) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    Counter counter(5);
    if (world.rank() == 2) {
      counter.mean[1][2] = 2;
    }
    expect_refused_save(
        engine,
        folder,
        {&counter},
        {"'counter'", "tensor mean is Float [2, 3]", "rank 0", "rank 2"});
  });
}

TEST(StateAgreement, WhatEachRankHasForItselfMayDiffer) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    Counter counter(world.rank(), /*per_rank=*/true);
    // Also one that some ranks lack.
    std::vector<Checkpointable*> states;
    if (world.rank() != 0) {
      states.push_back(&counter);
    }
    engine.save(folder / "run", states);
    Counter loaded(9, /*per_rank=*/true);
    states.clear();
    if (world.rank() != 0) {
      states.push_back(&loaded);
    }
    engine.load(folder / "run", states);
    EXPECT_EQ(loaded.count, world.rank() == 0 ? 9 : world.rank());
    Counter mixed(1, /*per_rank=*/world.rank() == 2);
    expect_error(
        [&] { engine.save(folder / "run", {&mixed}); },
        {"is_per_rank() of the state 'counter' is false on rank 0 and true on rank 2"});
  });
}

TEST(StateAgreement, AStateOfRankZeroAloneIsItsOwn) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    Counter counter(world.rank() + 3);
    std::vector<Checkpointable*> states;
    if (world.rank() == 0) {
      states.push_back(&counter);
    }
    engine.save(folder / "run", states);
    counter.count = 0;
    engine.load(folder / "run", states);
    EXPECT_EQ(counter.count, world.rank() == 0 ? 3 : 0);
  });
}

TEST(StateAgreement, AStateThatRankZeroLacksWouldBeLost) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    Counter counter(5);
    std::vector<Checkpointable*> states;
    if (world.rank() == 1) {
      states.push_back(&counter);
    }
    expect_refused_save(
        engine,
        folder,
        states,
        {"the state 'counter' is passed on rank 1, but not on rank 0"});
  });
}

// The checkpoint's is loaded on all ranks.
TEST(StateAgreement, LearningRatesAreCompared) {
  run_with_engine([](World& world, Engine& engine, const auto& folder) {
    engine.set_learning_rate(world.rank() == 2 ? 0.5 : 0.25);
    expect_refused_save(
        engine,
        folder,
        {},
        {"learning_rate is 0.25 on rank 0 and 0.5 on rank 2",
         "set_learning_rate()"});
    engine.set_learning_rate(0.5);
    engine.save(folder / "run");
  });
}

TEST(StateAgreement, OfAllStagesAndParts) {
  const TemporaryFolder folder;
  const MeshLayout layout{
      "tensor2_pipeline2", {.shard = 1, .tensor = 2, .pipeline = 2}};
  run_ranks(layout.world_size(), [&](World& world) {
    MeshJob job(world, layout, mesh_options());
    Counter counter(world.rank() == 3 ? 7 : 5);
    expect_error(
        [&] { job.engine().save(folder / "run", {&counter}); },
        {"seen.samples is 5 on rank 0 and 7 on rank 3"});
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
    job.train(0);
  });
}

} // namespace tessera::engine::state_agreement_test
