// SPDX-License-Identifier: Apache-2.0
// Whatever happens to a run or to its files, the last good checkpoint loads,
// and a bad one is refused by name before anything has changed.
#include "engine/checkpoint/checkpoint_support.h"

#include "support/ranks.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/optim/optimizer.h"
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

// These take tensors of the names that AdamW has saved, or fewer.
TEST(Damage, AnotherOptimizerIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 2);
  for (const UpdateRule& rule :
       {UpdateRule(LambOptions{}),
        UpdateRule(LionOptions{}),
        UpdateRule(SgdOptions{.momentum = 0})}) {
    const std::string local = std::string("'") + rule.optimizer().key() + "'";
    expect_refused(
        folder.path(),
        2,
        {"'adamw'", local.c_str(), "load_weights()", "model.start_from"},
        {.rule = rule});
  }
}

TEST(Damage, AnotherOptimizerOfTheUserIsNamed) {
  const TemporaryFolder folder;
  const auto options_of = [](const UserOptimizerOptions& user) {
    EngineOptions options = group_per_layer();
    options.optimizer.rule = user;
    return options;
  };
  const UserOptimizerOptions rms{[](auto groups) {
    return std::make_unique<torch::optim::RMSprop>(std::move(groups));
  }};
  const UserOptimizerOptions adagrad{[](auto groups) {
    return std::make_unique<torch::optim::Adagrad>(std::move(groups));
  }};
  run_ranks(2, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of(rms));
    train_steps(engine, net, 2);
    engine.save(folder.path());
    auto other = make_restless(2, torch::kFloat);
    auto refused = wrap(other, options_of(adagrad));
    const auto before = values_of(refused, *other);
    expect_throws(
        [&] { refused.load(folder.path()); },
        {"torch::optim::RMSprop when", "torch::optim::Adagrad now"});
    expect_equal(values_of(refused, *other), before, "refused");
    // LibTorch would go on with the saved options, without a word.
    const auto with = [&](const torch::optim::RMSpropOptions& chosen) {
      return options_of(UserOptimizerOptions{[chosen](auto groups) {
        return std::make_unique<torch::optim::RMSprop>(
            std::move(groups), chosen);
      }});
    };
    auto momentous = wrap(
        make_restless(2, torch::kFloat),
        with(torch::optim::RMSpropOptions(1).momentum(0.9)));
    expect_throws(
        [&] { momentous.load(folder.path()); },
        {"torch::optim::RMSprop",
         "momentum 0 when",
         "has 0.9 now",
         "load_weights()"});
    auto faster = wrap(
        make_restless(2, torch::kFloat), with(torch::optim::RMSpropOptions(1)));
    EXPECT_EQ(faster.load(folder.path()), 2);
    EXPECT_EQ(engine.load(folder.path()), 2);
  });
  expect_refused(
      folder.path(),
      2,
      {"'a user-defined optimizer'", "'sgd'", "load_weights()"},
      {.rule = SgdOptions{}});
}

// Both optimizers' next step from the same moments, in float64.
TEST(Damage, AdamContinuesWithAdamWsMomentsAndSaysSo) {
  const TemporaryFolder folder;
  const auto options_of = [](const UpdateRule& rule) {
    EngineOptions options = group_per_layer();
    options.optimizer.rule = rule;
    options.optimizer.weight_decay = 0; // in which alone they differ
    return options;
  };
  const auto results = run_ranks_expecting(2, [&](World&) {
    auto net = make_restless(1, torch::kDouble);
    auto engine = wrap(net, options_of(AdamWOptions{}));
    train_steps(engine, net, 2);
    engine.save(folder.path());
    train_steps(engine, net, 1);
    auto other = make_restless(2, torch::kDouble);
    auto resumed = wrap(other, options_of(AdamOptions{}));
    resumed.load(folder.path());
    train_steps(resumed, other, 1);
    expect_equal(
        values_of(resumed, *other), values_of(engine, *net), "resumed");
  });
  for (size_t r = 0; r < results.size(); ++r) {
    EXPECT_EQ(results[r].exit_code, 0) << results[r].output;
    EXPECT_EQ(
        results[r].output.find("the optimizer 'adamw'; 'adam' continues") !=
            std::string::npos,
        r == 0)
        << results[r].output;
  }
}

// There is no state yet with which the other one would have to go on.
TEST(Damage, AnyOptimizerContinuesBeforeTheFirstStep) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, group_per_layer());
    engine.save(folder.path());
    const auto saved = values_of(engine, *net);
    for (const UpdateRule& rule :
         {UpdateRule(SgdOptions{.momentum = 0.9}),
          UpdateRule(LionOptions{}),
          UpdateRule(LambOptions{}),
          UpdateRule(AdafactorOptions{})}) {
      auto options = group_per_layer();
      options.optimizer.rule = rule;
      auto other = make_restless(2, torch::kFloat);
      auto resumed = wrap(other, options);
      train_steps(resumed, other, 1); // has state, which ends here
      EXPECT_EQ(resumed.load(folder.path()), 0);
      expect_equal(values_of(resumed, *other), saved, "loaded");
      train_steps(resumed, other, 1);
    }
  });
}

// What the module fills in its first forward would begin anew.
TEST(Damage, BuffersThatTheModuleLacksAreNamed) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    net->register_buffer("late", torch::ones({3}));
    auto engine = wrap(net, group_per_layer());
    train_steps(engine, net, 1);
    engine.save(folder.path());
    for (const bool is_undefined : {false, true}) {
      auto other = make_restless(2, torch::kFloat);
      if (is_undefined) {
        other->register_buffer("late", at::Tensor());
      }
      auto loaded = wrap(other, group_per_layer());
      const auto before = values_of(loaded, *other);
      expect_throws(
          [&] { loaded.load(folder.path()); }, {"buffer 'late'", "not yet"});
      expect_equal(values_of(loaded, *other), before, "refused");
    }
    auto other = make_restless(2, torch::kFloat);
    other->register_buffer("late", torch::zeros({3}));
    auto loaded = wrap(other, group_per_layer());
    loaded.load(folder.path());
    EXPECT_TRUE(other->named_buffers()["late"].equal(torch::ones({3})));
  });
}

// As versions have saved them that did not say which optimizer it was.
TEST(Damage, AnotherOptimizersStateOrModelIsNamed) {
  const TemporaryFolder folder;
  save_two(folder.path(), 2);
  const auto checkpoint = folder / "step-000002";
  CheckpointManifest manifest = read_manifest(checkpoint);
  for (auto& [name, parameter] : manifest.parameters) {
    EXPECT_EQ(parameter.optimizer, name.starts_with("frozen.") ? "" : "adamw");
    parameter.optimizer.clear();
  }
  runtime::write_file_atomically(
      checkpoint / "manifest.json", to_text(manifest));
  OptimizerOptions sgd;
  sgd.rule = SgdOptions{.momentum = 0.9};
  expect_refused(
      folder.path(), 2, {"'momentum_buffer'", "a different optimizer"}, sgd);
  run_ranks(2, [&](World&) {
    auto net = make_restless(2, torch::kFloat);
    auto options = group_per_layer();
    options.optimizer.rule = LambOptions{};
    auto engine = wrap(net, options);
    EXPECT_EQ(engine.load(folder.path()), 2);
  });
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
