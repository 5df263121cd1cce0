// SPDX-License-Identifier: Apache-2.0
// A model takes of another one's checkpoint what fits, and the report says what
// became of every tensor on either side.
#include "engine/checkpoint/checkpoint_support.h"
#include "engine/parallel/mesh_checkpoint.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/checkpoint/checkpoint_weights.h"
#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/sharding/lazy/lazy.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace tessera::engine::partial_load_test {

namespace {

namespace fs = std::filesystem;
using namespace tests;
using Names = std::vector<std::string>;

/// Of RestlessImpl the first layer under another name, the norm without its
/// layer's features, the last layer with other outputs, and a layer more.
struct OtherImpl : torch::nn::Module {
  OtherImpl()
      : body(register_module("body", torch::nn::Linear(7, 13))),
        norm(register_module("norm", torch::nn::BatchNorm1d(13))),
        last(register_module("last", torch::nn::Linear(13, 5))),
        extra(register_module("extra", torch::nn::Linear(5, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return extra(last(norm(body(x))));
  }
  torch::nn::Linear body;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
  torch::nn::Linear extra;
};
TORCH_MODULE(Other);

Other make_other(uint64_t seed) {
  torch::manual_seed(seed);
  Other net;
  net->to(torch::kFloat); // counts of batches too, as in make_restless()
  return net;
}

EngineOptions options_of(size_t min_group_numel = 0) {
  EngineOptions options = group_per_layer();
  options.sharding.groups.min_group_numel = min_group_numel;
  options.optimizer.lr = 0.01;
  options.log_memory = false;
  return options;
}

Names sorted(Names names) {
  std::sort(names.begin(), names.end());
  return names;
}

Names loaded_names(const LoadWeightsReport& report) {
  Names names;
  for (const LoadedWeight& weight : report.loaded) {
    names.push_back(weight.name + " <- " + weight.source);
  }
  return sorted(names);
}

/// A checkpoint of three steps of Restless in folder/run and, without optimizer
/// state, folder/weights.safetensors.
void save_restless(const TemporaryFolder& folder, int ranks) {
  run_ranks(ranks, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of());
    torch::manual_seed(5);
    train_steps(engine, net, 3);
    engine.save(folder / "run");
    engine.save_weights(folder / "weights.safetensors");
  });
}

LoadWeightsOptions lenient() {
  LoadWeightsOptions options;
  options.rename_rules = {{"first\\.(.*)", "body.$1"}};
  options.strict = false;
  return options;
}

} // namespace

TEST(PartialLoad, RanksLoadTheSameWeights) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of());
    engine.save(folder / "one");
    engine.save_weights(folder / "one.safetensors");
    train_steps(engine, net, 2);
    engine.save(folder / "other");
    engine.save_weights(folder / "other.safetensors");
    const auto before = values_of(engine, *net);
    const auto load = [&](const std::string& first,
                          const std::string& second,
                          const LoadWeightsOptions& options = {}) {
      engine.load_weights(
          folder / (world.rank() == 0 ? first : second), options);
    };
    for (const char* kind : {"", ".safetensors"}) {
      const std::string one = std::string("one") + kind;
      const std::string other = std::string("other") + kind;
      expect_error(
          [&] { load(one, other); },
          {"load_weights: the ranks have opened files with different weights",
           ("rank 0: '" + (folder / one).string()).c_str(),
           ("rank 1: '" + (folder / other).string()).c_str()});
      LoadWeightsOptions some;
      (world.rank() == 0 ? some.only : some.except) = {"first\\..*"};
      expect_error(
          [&] { load(one, one, some); },
          {"load_weights: the ranks have different options",
           "rank 0: {\"except\":[],\"only\":[\"first",
           "rank 1: {\"except\":[\"first"});
    }
    expect_equal(values_of(engine, *net), before, "refused");
    if (world.rank() == 0) {
      fs::copy(folder / "one.safetensors", folder / "copy.safetensors");
    }
    load("one.safetensors", "one.safetensors");
    const auto loaded = values_of(engine, *net);
    load("other", "other");
    load("one.safetensors", "copy.safetensors");
    expect_equal(values_of(engine, *net), loaded, "a copy");
  });
}

// Lazy parameters are read when they are wrapped, each rank its shard.
TEST(PartialLoad, RanksReadLazyWeightsFromTheSameFiles) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto make = [] {
      LazyOptions options;
      options.min_numel = 0;
      return lazy([] { return make_restless(1, torch::kFloat); }, options);
    };
    auto net = make_restless(1, torch::kFloat);
    auto engine = wrap(net, options_of());
    engine.save_weights(folder / "one.safetensors");
    const auto saved = values_of(engine, *net);
    train_steps(engine, net, 2);
    engine.save_weights(folder / "other.safetensors");
    const auto load_and_wrap = [&](const char* of_rank_1) {
      auto young = make();
      load_weights(
          *young,
          folder / (world.rank() == 0 ? std::string("one") : of_rank_1)
                       .append(".safetensors"));
      auto wrapped = wrap(young, options_of());
      return values_of(wrapped, *young);
    };
    expect_error(
        [&] { load_and_wrap("other"); },
        {"wrap: the module on rank 1 differs from rank 0's",
         "the weights in their files"});
    expect_equal(load_and_wrap("one"), saved, "of one file");
  });
}

TEST(PartialLoad, ReportsEveryTensorOfBothSides) {
  const TemporaryFolder folder;
  save_restless(folder, 2);
  for (const int ranks : {1, 3}) {
    for (const char* source : {"run", "weights.safetensors"}) {
      SCOPED_TRACE(std::to_string(ranks) + source);
      run_ranks(ranks, [&](World&) {
        auto net = make_other(2);
        auto engine = wrap(net, options_of(1000));
        const auto before = values_of(engine, *net);
        const auto report = engine.load_weights(folder / source, lenient());
        EXPECT_EQ(
            loaded_names(report),
            (Names{
                "body.bias <- first.bias",
                "body.weight <- first.weight",
                "norm.bias <- norm.bias",
                "norm.num_batches_tracked <- norm.num_batches_tracked",
                "norm.running_mean <- norm.running_mean",
                "norm.running_var <- norm.running_var",
                "norm.weight <- norm.weight"}));
        EXPECT_EQ(
            sorted(report.missing), (Names{"extra.bias", "extra.weight"}));
        ASSERT_EQ(report.other_shapes.size(), 2u);
        EXPECT_EQ(report.other_shapes[1].name, "last.weight");
        EXPECT_EQ(
            report.other_shapes[1].expected, (std::vector<int64_t>{5, 13}));
        EXPECT_EQ(report.other_shapes[1].found, (std::vector<int64_t>{3, 13}));
        EXPECT_EQ(
            sorted(report.unexpected), (Names{"frozen.bias", "frozen.weight"}));
        EXPECT_TRUE(report.not_chosen.empty());
        EXPECT_TRUE(report.missing_buffers.empty());
        // For programs and for people.
        const auto json = nlohmann::json::parse(report.json());
        EXPECT_EQ(json.at("other_shapes").size(), 2u);
        EXPECT_EQ(json.at("loaded").size(), 7u);
        for (const char* part :
             {"loaded 7 of 11 tensors",
              "last.weight (last.weight is [3, 13], not [5, 13])",
              "not in the checkpoint, keep their values (2)",
              "of the checkpoint, not in the model (2)"}) {
          EXPECT_NE(report.text().find(part), std::string::npos)
              << part << " in " << report.text();
        }
        const auto after = values_of(engine, *net);
        const auto saved = checkpoint_weights(folder / "run");
        for (const auto& [name, value] : after) {
          const auto* entry = saved.find(
              name.starts_with("body.") ? "first" + name.substr(4) : name);
          const bool is_loaded =
              name.starts_with("body.") || name.starts_with("norm.");
          EXPECT_TRUE(value.equal(
              is_loaded ? sharding::loaded_tensor(*entry).to(value.dtype())
                        : before.at(name)))
              << name;
        }
      });
    }
  }
}

TEST(PartialLoad, LoadsWhatIsChosen) {
  const TemporaryFolder folder;
  save_restless(folder, 2);
  run_ranks(2, [&](World&) {
    auto net = make_other(2);
    auto engine = wrap(net, options_of());
    LoadWeightsOptions options = lenient();
    options.only = {"body\\..*", "norm\\.(weight|bias)"};
    options.except = {".*\\.bias"};
    const auto report = engine.load_weights(folder / "run", options);
    EXPECT_EQ(
        loaded_names(report),
        (Names{"body.weight <- first.weight", "norm.weight <- norm.weight"}));
    EXPECT_EQ(report.not_chosen.size(), 9u);
    EXPECT_TRUE(report.missing.empty());
    EXPECT_TRUE(report.other_shapes.empty());
    EXPECT_EQ(report.left_out.size(), 7u);
    // Strict, and all that is chosen is there.
    options.strict = true;
    options.rename_rules.push_back({"frozen\\..*", ""});
    EXPECT_EQ(engine.load_weights(folder / "run", options).loaded.size(), 2u);
    options.only = {"bodi\\..*"};
    expect_error(
        [&] { engine.load_weights(folder / "run", options); },
        {"'bodi\\..*'", "matches none"});
    options.only = {"(body"};
    expect_error(
        [&] { engine.load_weights(folder / "run", options); },
        {"'(body'", "not a valid regular expression"});
  });
}

// With its optimizer state a parameter is trained on as if nothing had
// happened; without it, it is not.
TEST(PartialLoad, KeepsOptimizerStateOnRequest) {
  const TemporaryFolder folder;
  run_ranks(1, [&](World&) {
    auto net = make_restless(1, torch::kFloat);
    net->eval(); // nothing at random
    auto engine = wrap(net, options_of());
    torch::manual_seed(5);
    train_steps(engine, net, 3);
    engine.save(folder / "run");
    torch::manual_seed(9);
    train_steps(engine, net, 1);
    engine.save_weights(folder / "next.safetensors");
  });
  for (const int ranks : {1, 2}) {
    for (const bool with_state : {true, false}) {
      SCOPED_TRACE(ranks);
      run_ranks(ranks, [&](World&) {
        auto net = make_restless(2, torch::kFloat);
        net->eval();
        auto engine = wrap(net, options_of(ranks == 1 ? 0 : 1000));
        LoadWeightsOptions options;
        options.optimizer_state = with_state;
        options.except = {"norm\\.bias"};
        const auto report = engine.load_weights(folder / "run", options);
        EXPECT_EQ(report.with_state.size(), with_state ? 5u : 0u);
        EXPECT_TRUE(report.without_state.empty());
        LoadWeightsOptions rest; // its value, without its moments
        rest.only = {"norm\\.bias"};
        rest.strict = false;
        engine.load_weights(folder / "run", rest);
        torch::manual_seed(9);
        train_steps(engine, net, 1);
        const auto next =
            sharding::WeightFiles::open(folder / "next.safetensors");
        for (const auto& [name, value] : values_of(engine, *net)) {
          const bool is_trained = !name.starts_with("frozen.") &&
                                  value.is_floating_point() &&
                                  !name.starts_with("norm.running") &&
                                  !name.starts_with("norm.num");
          const at::Tensor wanted = sharding::loaded_tensor(*next.find(name));
          const bool has_moments = with_state && name != "norm.bias";
          EXPECT_EQ(
              value.allclose(wanted.to(value.dtype()), 1e-6, 1e-7),
              !is_trained || has_moments)
              << name;
        }
      });
    }
  }
}

TEST(PartialLoad, FilesThatOneRankCannotOpenAreTheErrorOfAll) {
  const TemporaryFolder folder;
  save_restless(folder, 2);
  run_ranks(2, [&](World& world) {
    auto net = make_other(2);
    auto engine = wrap(net, options_of());
    const std::string message = error_of([&] {
      engine.load_weights(
          folder / (world.rank() == 1 ? "not_there" : "run"), lenient());
    });
    EXPECT_NE(
        message.find(
            world.rank() == 1 ? "not_there" : "failed on 1 other rank"),
        std::string::npos)
        << message;
    LoadWeightsOptions options = lenient();
    options.optimizer_state = world.rank() == 1;
    expect_error(
        [&] { engine.load_weights(folder / "run", options); },
        {"different options optimizer_state",
         "rank 0: it is not set",
         "rank 1: it is set"});
    engine.load_weights(folder / "run", lenient());
  });
}

TEST(PartialLoad, SaysWhichStateIsNotThere) {
  const TemporaryFolder folder;
  save_restless(folder, 2);
  run_ranks(2, [&](World&) {
    auto net = make_other(2);
    EngineOptions sgd = options_of();
    sgd.optimizer.rule = SgdOptions{.momentum = 0.9};
    auto engine = wrap(net, sgd);
    LoadWeightsOptions options = lenient();
    options.optimizer_state = true;
    const auto report = engine.load_weights(folder / "run", options);
    EXPECT_TRUE(report.with_state.empty());
    EXPECT_EQ(
        report.without_state,
        (Names{"body.bias", "body.weight", "norm.bias", "norm.weight"}));
    EXPECT_NE(
        report.text().find("their optimizer state was not (4)"),
        std::string::npos)
        << report.text();
    expect_error(
        [&] { engine.load_weights(folder / "weights.safetensors", options); },
        {"optimizer_state", "is not a checkpoint"});
    // The momentum of Lion has the name of another one of AdamW.
    EngineOptions lion = options_of();
    lion.optimizer.rule = LionOptions{};
    auto other = make_other(2);
    auto of_lion = wrap(other, lion);
    const auto without = of_lion.load_weights(folder / "run", options);
    EXPECT_TRUE(without.with_state.empty());
    EXPECT_EQ(without.without_state, report.without_state);
  });
}

// Damage is found before anything has changed.
TEST(PartialLoad, RefusesDamagedPieces) {
  const TemporaryFolder folder;
  save_restless(folder, 2);
  const fs::path file = folder / "run/step-000003/rank-0.safetensors";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t header = 0;
  stream.read(reinterpret_cast<char*>(&header), sizeof(header));
  stream.seekp(static_cast<std::streamoff>(sizeof(header) + header + 4));
  stream.put('\x55');
  stream.close();
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](World&) {
      auto net = make_restless(2, torch::kFloat);
      auto engine = wrap(net, options_of());
      const auto before = values_of(engine, *net);
      const std::string message =
          error_of([&] { engine.load_weights(folder / "run"); });
      if (message.find("other rank") == std::string::npos) {
        EXPECT_NE(message.find("damaged"), std::string::npos) << message;
      }
      expect_equal(values_of(engine, *net), before, "after a refused load");
    });
  }
}

TEST(PartialLoad, IntoPartsOfAModelFromOtherParts) {
  const TemporaryFolder folder;
  const auto save = [&](const MeshLayout& layout, const char* name) {
    run_ranks(layout.world_size(), [&](World& world) {
      MeshJob job(world, layout, mesh_options(), false, /*seed=*/8);
      job.train(0);
      job.engine().save(folder / name);
      job.engine().save_weights(folder / (std::string(name) + ".safetensors"));
    });
  };
  save(kMeshLayouts[1], "tensor");
  save(kMeshLayouts[3], "pipeline");
  for (const char* from : {"tensor", "pipeline"}) {
    for (const size_t to : {3, 4}) {
      const MeshLayout& layout = kMeshLayouts[to];
      SCOPED_TRACE(std::string(from) + " to " + layout.name);
      run_ranks(layout.world_size(), [&](World& world) {
        MeshJob job(world, layout, mesh_options(), false, /*seed=*/6);
        LoadWeightsOptions options;
        options.only = {"head\\..*", "block[0-9]\\..*", "embedding\\..*"};
        options.except = {"block2\\.norm1\\.weight"};
        options.optimizer_state = true;
        const auto report = job.engine().load_weights(folder / from, options);
        EXPECT_TRUE(report.missing.empty());
        EXPECT_FALSE(report.not_chosen.empty());
        // One of them is frozen.
        EXPECT_EQ(report.with_state.size() + 1, report.loaded.size());
        EXPECT_TRUE(report.without_state.empty());
        job.engine().save_weights(folder / "got.safetensors");
        if (world.rank() == 0) {
          const auto got =
              sharding::WeightFiles::open(folder / "got.safetensors");
          const auto want = sharding::WeightFiles::open(
              folder / (std::string(from) + ".safetensors"));
          for (const LoadedWeight& weight : report.loaded) {
            EXPECT_TRUE(
                sharding::loaded_tensor(*got.find(weight.name))
                    .equal(sharding::loaded_tensor(*want.find(weight.name))))
                << weight.name;
          }
        }
      });
    }
  }
}

} // namespace tessera::engine::partial_load_test
