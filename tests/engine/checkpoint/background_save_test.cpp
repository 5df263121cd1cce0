// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written while training continues are those of the step
// at which they were begun; what goes wrong is told, and nothing else is lost.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/trainer/trainer.h"
#include "tessera/runtime/io/atomic_file.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tessera::engine::background_save_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;

EngineOptions options_of(bool in_background) {
  EngineOptions options = group_per_layer();
  options.optimizer.lr = 0.01;
  options.save_in_background = in_background;
  return options;
}

/// Trains three steps, saves, and trains on.
fs::path train_and_save(const fs::path& folder, bool in_background) {
  auto net = make_restless(1, torch::kFloat);
  auto engine = wrap(net, options_of(in_background));
  torch::manual_seed(5);
  train_steps(engine, net, 3);
  if (!in_background) {
    return engine.save(folder);
  }
  const PendingSave save = engine.save_in_background(folder);
  train_steps(engine, net, 4); // shards, moments, buffers, generators change
  return save.wait();
}

std::string content_of(const fs::path& path) {
  return runtime::read_text_file(path);
}

/// Without what tells runs apart.
std::string manifest_of(const fs::path& checkpoint) {
  CheckpointManifest manifest = read_manifest(checkpoint);
  manifest.lineage = "";
  return to_text(manifest);
}

/// A task whose weights depend on every step.
class Steps : public TrainingTask {
 public:
  explicit Steps(Restless net) : net_(std::move(net)) {}
  int64_t batches_per_epoch() const override {
    return 12;
  }
  int64_t batch_size() const override {
    return 5;
  }
  void begin_epoch(int64_t /*epoch*/) override {}
  MicroBatch forward(int64_t /*index*/) override {
    return {net_->forward(torch::randn({5, 7})).square().mean(), 35};
  }

 private:
  Restless net_;
};

int64_t host_snapshot(const MemoryBytes& bytes) {
  return bytes[static_cast<size_t>(MemoryPurpose::kSnapshot)];
}

} // namespace

TEST(BackgroundSave, WritesTheBytesOfTheStepAtWhichItBegan) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const TemporaryFolder folder;
    run_ranks(ranks, [&](World& world) {
      const fs::path expected = train_and_save(folder / "sync", false);
      const fs::path got = train_and_save(folder / "async", true);
      EXPECT_EQ(got.filename(), expected.filename());
      const std::string file =
          "rank-" + std::to_string(world.rank()) + ".safetensors";
      EXPECT_EQ(content_of(got / file), content_of(expected / file));
      if (world.rank() == 0) {
        EXPECT_EQ(manifest_of(got), manifest_of(expected));
      }
    });
  }
}

TEST(BackgroundSave, OneFollowsTheOtherInTheSameMemory) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of(true));
    const int64_t planned =
        host_snapshot(engine.planned_memory(MemoryTier::kHost));
    EXPECT_GT(planned, 0);
    std::vector<PendingSave> saves;
    for (int i = 0; i < 3; ++i) {
      train_steps(engine, net, 1);
      saves.push_back(engine.save_in_background(folder / "run", {}, 2));
      const int64_t measured =
          host_snapshot(engine.measured_memory(MemoryTier::kHost));
      EXPECT_GT(measured, 0);
      EXPECT_LE(measured, planned);
    }
    for (const PendingSave& save : saves) {
      save.wait();
      EXPECT_TRUE(save.is_done());
    }
    if (world.rank() == 0) {
      const auto all = list_checkpoints(folder / "run");
      ASSERT_EQ(all.size(), 2U); // of three, two are kept
      EXPECT_EQ(read_manifest(all.back()).step, 3);
    }
  });
}

/// A state that one rank cannot save, or whose values are no longer there when
/// they are written.
class Faulty : public Checkpointable {
 public:
  explicit Faulty(bool fails) : fails_(fails) {}
  std::string name() const override {
    return "faulty";
  }
  bool is_per_rank() const override {
    return true;
  }
  CheckpointState save_state() const override {
    TESSERA_CHECK(!fails_, "this state is lost");
    return {};
  }
  void load_state(const CheckpointState& /*state*/) override {}

 private:
  bool fails_;
};

TEST(BackgroundSave, TellsEveryRankWhatWentWrong) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of(true));
    train_steps(engine, net, 1);
    const auto fails = [&](const std::function<void()>& action) {
      try {
        action();
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    // Before it has begun.
    Faulty faulty(world.rank() == 1);
    const std::string before =
        fails([&] { engine.save_in_background(folder / "run", {&faulty}); });
    EXPECT_NE(
        before.find(
            world.rank() == 1 ? "this state is lost"
                              : "failed on 1 other rank"),
        std::string::npos)
        << before;
    // While it is written: there is a file in the place of the checkpoint.
    if (world.rank() == 0) {
      std::filesystem::create_directories(folder / "run");
      std::ofstream(folder / "run" / "step-000001") << "no folder";
    }
    engine.sum_over_ranks(torch::zeros({1}));
    const std::string refused =
        fails([&] { engine.save_in_background(folder / "run").wait(); });
    EXPECT_NE(
        refused.find(
            world.rank() == 0 ? "is not a folder" : "failed on 1 other rank"),
        std::string::npos)
        << refused;
    // Neither keeps the next one from being written.
    train_steps(engine, net, 1);
    const PendingSave good = engine.save_in_background(folder / "run");
    train_steps(engine, net, 1);
    EXPECT_EQ(read_manifest(good.wait()).step, 2);
  });
}

// Whoever ends with an error does not wait for ranks that wait for it.
TEST(BackgroundSave, DoesNotHangWhereTrainingFails) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World&) {
    const auto trains = [&] {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, options_of(true));
      train_steps(engine, net, 1);
      engine.save_in_background(folder / "run");
      throw Error("the end");
    };
    EXPECT_THROW(trains(), Error);
  });
}

TEST(BackgroundSave, IsRefusedWithoutMemoryForIt) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of(false));
    train_steps(engine, net, 1);
    expect_error(
        [&] { engine.save_in_background(folder / "run"); },
        {"EngineOptions::save_in_background"});
    auto options = options_of(true);
    options.memory.host_bytes = 4096;
    auto other = make_restless(1, torch::kFloat);
    expect_error(
        [&] { wrap(other, options); },
        {"save_in_background takes", "memory.host_bytes is 4.00 KiB"});
  });
}

TEST(BackgroundSave, OfTheTrainerLeavesWhatSavesOfItsOwnLeave) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    for (const bool in_background : {false, true}) {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, options_of(in_background));
      torch::manual_seed(4 + world.rank());
      Steps task(net);
      TrainerOptions options;
      options.save_every = 3;
      options.save_minutes = 0;
      options.keep_last = 0;
      options.run_folder = folder / (in_background ? "async" : "sync");
      fs::create_directories(options.run_folder);
      const auto summary = train(world, engine, task, options);
      EXPECT_EQ(summary.checkpoint.filename(), "step-000012");
    }
    for (const char* step : {"03", "06", "09", "12"}) {
      const std::string file = std::string("checkpoints/step-0000") + step +
                               "/rank-" + std::to_string(world.rank()) +
                               ".safetensors";
      EXPECT_EQ(
          content_of(folder / "async" / file),
          content_of(folder / "sync" / file))
          << step;
    }
  });
}

} // namespace tessera::engine::background_save_test
