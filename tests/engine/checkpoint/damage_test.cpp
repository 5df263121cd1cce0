// SPDX-License-Identifier: Apache-2.0
// Whatever happens to a run or to its files, the last good checkpoint loads,
// and a bad one is refused by name before anything has changed.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/runtime/io/atomic_file.h"

#include <csignal>
#include <fstream>

namespace tessera::engine::damage_test {

namespace {

using namespace tests;

/// Ends the process without a word when it is saved.
class Killer : public Checkpointable {
 public:
  std::string name() const override {
    return "killer";
  }
  bool is_per_rank() const override {
    return true;
  }
  CheckpointState save_state() const override {
    if (armed) {
      std::raise(SIGKILL);
    }
    return {{{"alive", true}}, {}};
  }
  void load_state(const CheckpointState&) override {}
  bool armed = false;
};

/// Two checkpoints, of steps 1 and 2.
void save_two(const std::filesystem::path& folder, int ranks) {
  run_ranks(ranks, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    for (int i = 0; i < 2; ++i) {
      train_steps(engine, net, 1);
      engine.save(folder);
    }
  });
}

/// Loading `folder` fails on all ranks with `parts` on the one that sees it,
/// and the engine is as before.
void expect_refused(
    const std::filesystem::path& folder,
    int ranks,
    std::initializer_list<const char*> parts,
    const OptimizerOptions& optimizer = {}) {
  run_ranks(ranks, [&](World&) {
    auto net = make_restless(2, torch::kFloat);
    auto options = group_per_layer();
    options.optimizer = optimizer;
    auto engine = wrap(net, options);
    train_steps(engine, net, 1);
    const auto before = values_of(engine, *net);
    const std::string message = error_of([&] { engine.load(folder); });
    if (message.find("other rank") == std::string::npos) {
      for (const char* part : parts) {
        EXPECT_NE(message.find(part), std::string::npos)
            << "expected: " << part << "\nfound: " << message;
      }
    }
    expect_equal(values_of(engine, *net), before, "after a refused load");
    train_steps(engine, net, 1);
  });
}

void flip_a_byte(const std::filesystem::path& file, int64_t from_end) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(stream.get() ^ 0x10);
  stream.seekp(-from_end, std::ios::end);
  stream.put(byte);
}

} // namespace

TEST(Damage, AKilledSaveLeavesTheOneBefore) {
  for (const int victim : {0, 1}) {
    const TemporaryFolder folder;
    const auto results = run_ranks_expecting(2, [&](World& world) {
      auto net = make_restless(1, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      Killer killer;
      train_steps(engine, net, 1);
      engine.save(folder.path(), {&killer});
      train_steps(engine, net, 1);
      killer.armed = world.rank() == victim;
      engine.save(folder.path(), {&killer});
    });
    EXPECT_EQ(results[static_cast<size_t>(victim)].exit_code, 128 + SIGKILL);
    EXPECT_NE(results[static_cast<size_t>(1 - victim)].exit_code, 0);
    run_ranks(2, [&](World& world) {
      auto net = make_restless(2, torch::kFloat);
      auto engine = wrap(net, group_per_layer());
      EXPECT_EQ(engine.load(folder.path()), 1);
      train_steps(engine, net, 1);
      engine.save(folder.path());
      EXPECT_EQ(engine.load(folder.path()), 2);
      if (world.rank() == 0) {
        EXPECT_EQ(folder.count(), 2); // what the dead run left is gone
      }
    });
  }
}

TEST(Damage, ATruncatedFileIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 2);
  const auto file = folder / "step-000002/rank-1.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  expect_refused(folder.path(), 2, {"rank-1.safetensors", "bytes", "damaged"});
  expect_refused(folder.path(), 1, {"rank-1.safetensors", "bytes", "damaged"});
  std::filesystem::remove(file);
  expect_refused(folder.path(), 1, {"rank-1.safetensors", "cannot be read"});
  run_ranks(1, [&](World&) {
    auto net = make_restless(2, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    EXPECT_EQ(engine.load(folder / "step-000001"), 1);
  });
}

TEST(Damage, AFlippedBitIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 2);
  flip_a_byte(folder / "step-000002/rank-0.safetensors", 3);
  expect_refused(
      folder.path(), 2, {"rank-0.safetensors", "checksum", "damaged"});
}

TEST(Damage, ABrokenManifestIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 1);
  const auto file = folder / "step-000002/manifest.json";
  const std::string text = runtime::read_text_file(file);
  std::ofstream(file) << text.substr(0, text.size() / 2);
  expect_refused(folder.path(), 1, {"manifest.json"});
  std::ofstream(file) << "{\"format\": 1}";
  expect_refused(folder.path(), 1, {"manifest.json", "damaged"});
  std::ofstream(file) << "{\"format\": 7}";
  expect_refused(folder.path(), 1, {"manifest.json", "format is 7"});
}

TEST(Damage, AnotherOptimizerOrModelIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 2);
  OptimizerOptions sgd;
  sgd.rule = SgdOptions{.momentum = 0.9};
  expect_refused(
      folder.path(), 2, {"'momentum_buffer'", "a different optimizer"}, sgd);
  // These keep a part of what AdamW keeps.
  for (const UpdateRule& rule :
       {UpdateRule(LionOptions{}), UpdateRule(SgdOptions{.momentum = 0})}) {
    expect_refused(
        folder.path(),
        2,
        {"'exp_avg", "a different optimizer", "load_weights"},
        {.rule = rule});
  }
  run_ranks(1, [&](World&) {
    auto net = make_net<StackImpl>();
    auto engine = wrap(std::shared_ptr<torch::nn::Module>(net));
    expect_throws(
        [&] { engine.load(folder.path()); }, {"parameter", "as it was saved"});
  });
  run_ranks(1, [&](World&) {
    auto net = make_restless(2, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    expect_throws(
        [&] { engine.load(folder / "nothing"); },
        {"nothing", "is not a checkpoint"});
  });
}

} // namespace tessera::engine::damage_test
