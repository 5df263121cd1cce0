// SPDX-License-Identifier: Apache-2.0
// What an engine has written stays: neither its own later saves nor those of
// another engine or run remove it, but for keep_last of its own.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <utility>

namespace tessera::engine::lineage_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;

/// A net and its engine.
struct TrainedNet {
  Restless net = make_restless(1, torch::kFloat);
  Engine engine = wrap(net, group_per_layer());

  fs::path train_and_save(int steps, const fs::path& folder, int keep = 0) {
    train_steps(engine, net, steps);
    const fs::path saved = engine.save(folder, {}, keep);
    EXPECT_TRUE(fs::exists(saved / "manifest.json")) << saved;
    return saved;
  }
};

using Names = std::set<std::string>;

Names names_in(const fs::path& folder) {
  Names names;
  for (const fs::path& path : list_checkpoints(folder)) {
    names.insert(path.filename().string());
  }
  return names;
}

class LineageByWorld : public ::testing::TestWithParam<int> {};

} // namespace

TEST_P(LineageByWorld, ANewRunInAnOldFolderKeepsBoth) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    TrainedNet old;
    for (int i = 0; i < 3; ++i) {
      old.train_and_save(3, folder.path());
    }
    TrainedNet young;
    young.train_and_save(1, folder.path(), 2);
    young.train_and_save(1, folder.path(), 2);
    young.train_and_save(2, folder.path(), 2);
    if (world.rank() == 0) {
      EXPECT_EQ(
          names_in(folder.path()),
          (Names{
              "step-000002",
              "step-000003",
              "step-000004",
              "step-000006",
              "step-000009"}));
    }
  });
}

TEST_P(LineageByWorld, ARunThatWentBackKeepsWhatItWritesThen) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    TrainedNet run;
    for (int i = 0; i < 3; ++i) {
      run.train_and_save(3, folder.path());
    }
    run.engine.load(folder / "step-000003");
    run.train_and_save(1, folder.path(), 2);
    if (world.rank() == 0) {
      EXPECT_EQ(names_in(folder.path()), (Names{"step-000003", "step-000004"}));
    }
    EXPECT_EQ(run.engine.load(folder.path()), 4);
  });
}

TEST_P(LineageByWorld, ARunContinuesInAnotherProcess) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    const fs::path saved = TrainedNet().train_and_save(2, folder.path());
    TrainedNet next;
    EXPECT_EQ(next.engine.load(saved), 2);
    next.engine.save(folder.path()); // the same step again
    next.train_and_save(1, folder.path(), 1);
    if (world.rank() == 0) {
      EXPECT_EQ(names_in(folder.path()), Names{"step-000003"});
    }
  });
}

TEST_P(LineageByWorld, AnotherEnginesCheckpointIsToldWhenItIsReplaced) {
  const TemporaryFolder folder;
  run_ranks(GetParam(), [&](World& world) {
    TrainedNet generator;
    TrainedNet discriminator;
    generator.train_and_save(2, folder.path());
    ::testing::internal::CaptureStderr();
    discriminator.train_and_save(2, folder.path());
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(
        told.find("another engine and is replaced") != std::string::npos,
        world.rank() == 0)
        << told;
    // Neither removes what the other has written since.
    discriminator.train_and_save(1, folder.path(), 1);
    generator.train_and_save(3, folder.path(), 1);
    EXPECT_TRUE(fs::exists(folder / "step-000003"));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, LineageByWorld, ::testing::Values(1, 2));

// Of folders that nodes do not share each rank would take its shards.
TEST(LineageTest, RanksLoadOneCheckpoint) {
  const TemporaryFolder folder;
  const auto as_of_before = [&](const char* from, const char* to) {
    fs::copy(folder / from, folder / to, fs::copy_options::recursive);
    const fs::path file = folder / to / "step-000002/manifest.json";
    auto manifest = nlohmann::json::parse(runtime::read_text_file(file));
    manifest["format"] = 2;
    manifest.erase("checksum");
    manifest.erase("lineage");
    runtime::write_file_atomically(file, manifest.dump());
  };
  run_ranks(2, [&](World& world) {
    TrainedNet one;
    one.train_and_save(2, folder / "one");
    const auto saved = values_of(one.engine, *one.net);
    TrainedNet other; // with other weights
    other.engine.set_learning_rate(0.5);
    other.train_and_save(2, folder / "other");
    other.train_and_save(1, folder / "other");
    if (world.rank() == 0) {
      fs::copy(folder / "one", folder / "copy", fs::copy_options::recursive);
      as_of_before("one", "old");
      as_of_before("other", "other_old");
    }
    TrainedNet young;
    const auto before = values_of(young.engine, *young.net);
    const auto load = [&](const fs::path& first, const fs::path& second) {
      return young.engine.load(folder / (world.rank() == 0 ? first : second));
    };
    for (const auto& [first, second] :
         {std::pair("one/step-000002", "other/step-000002"),
          std::pair("one", "other"), // another step
          std::pair("old/step-000002", "other_old/step-000002"),
          std::pair("one/step-000002", "other_old/step-000002")}) {
      expect_error(
          [&, first = first, second = second] { load(first, second); },
          {"found different checkpoints",
           ("rank 0: '" + (folder / first).string()).c_str(),
           ("rank 1: '" + (folder / second).string()).c_str(),
           "of step 2 of ",
           "All ranks must load the same one"});
      expect_equal(values_of(young.engine, *young.net), before, first);
    }
    for (const char* second : {"copy", "one"}) {
      EXPECT_EQ(load("one", second), 2);
      expect_equal(values_of(young.engine, *young.net), saved, second);
    }
    EXPECT_EQ(load("old", "old"), 2);
  });
}

TEST(LineageTest, LaterStepsInTheFolderAreToldOnce) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& /*world*/) {
    TrainedNet().train_and_save(5, folder.path());
    TrainedNet young;
    ::testing::internal::CaptureStderr();
    young.train_and_save(1, folder.path());
    const std::string told = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(told.find("later steps, up to"), std::string::npos) << told;
    EXPECT_NE(told.find("step-000005"), std::string::npos) << told;
    ::testing::internal::CaptureStderr();
    young.train_and_save(1, folder.path());
    EXPECT_EQ(
        ::testing::internal::GetCapturedStderr().find("later steps"),
        std::string::npos);
  });
}

TEST_P(LineageByWorld, AnEmptyPathIsNoFolder) {
  run_ranks(GetParam(), [&](World& /*world*/) {
    TrainedNet trained;
    train_steps(trained.engine, trained.net, 1);
    expect_throws(
        [&] { trained.engine.save(""); }, {"save", "the folder is ''"});
    expect_throws(
        [&] { trained.engine.save_weights(""); }, {"save_weights", "''"});
    EXPECT_FALSE(fs::exists("step-000001"));
    train_steps(trained.engine, trained.net, 1);
  });
}

/// As the optimizer of torch of an engine in Python.
class Groups : public Checkpointable {
 public:
  std::string name() const override {
    return "optimizer groups";
  }
  CheckpointState save_state() const override {
    return {{{"rates", {0.01, 0.003}}}, {}};
  }
  void load_state(const CheckpointState& /*state*/) override {}
};

TEST(LineageTest, GroupsThatAreDroppedAreTold) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& /*world*/) {
    TrainedNet trained;
    train_steps(trained.engine, trained.net, 1);
    Groups groups;
    trained.engine.save(folder.path(), {&groups});
    const auto log_of = [&](const std::vector<Checkpointable*>& states) {
      TrainedNet young;
      ::testing::internal::CaptureStderr();
      young.engine.load(folder.path(), states);
      return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_NE(log_of({}).find("has parameter groups"), std::string::npos);
    EXPECT_EQ(log_of({&groups}).find("parameter groups"), std::string::npos);
  });
}

TEST(LineageTest, ASaveBetweenBackwardAndStepWarns) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& /*world*/) {
    TrainedNet trained;
    const auto saved_with = [&](bool has_gradients) {
      if (has_gradients) {
        const auto x = torch::randn({5, 7});
        trained.engine.backward(trained.net->forward(x).square().mean());
      }
      ::testing::internal::CaptureStderr();
      trained.engine.save(folder / (has_gradients ? "with" : "without"));
      return ::testing::internal::GetCapturedStderr();
    };
    train_steps(trained.engine, trained.net, 1);
    EXPECT_EQ(saved_with(false).find("gradients"), std::string::npos);
    EXPECT_NE(
        saved_with(true).find(
            "there are gradients, which checkpoints do not contain"),
        std::string::npos);
    trained.engine.step();
    EXPECT_EQ(saved_with(false).find("gradients"), std::string::npos);
  });
}

TEST(LineageTest, CheckpointsWithoutOneAreReplacedAndNotRemoved) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World& /*world*/) {
    TrainedNet old;
    for (int i = 0; i < 2; ++i) {
      const fs::path saved = old.train_and_save(1, folder.path());
      CheckpointManifest manifest = read_manifest(saved);
      manifest.lineage = "";
      runtime::write_file_atomically(
          saved / "manifest.json", to_text(manifest));
    }
    TrainedNet young;
    young.train_and_save(2, folder.path(), 1);
    EXPECT_EQ(names_in(folder.path()), (Names{"step-000001", "step-000002"}));
    EXPECT_EQ(lineage_of(folder / "step-000002"), young.engine.lineage());
  });
}

} // namespace tessera::engine::lineage_test
