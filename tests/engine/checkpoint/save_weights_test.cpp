// SPDX-License-Identifier: Apache-2.0
// Weights of a sharded model in one safetensors file.
#include "tessera/engine/checkpoint/save_weights.h"

#include "engine/twin.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/safetensors.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/weights/load_weights.h"

namespace tessera::engine::save_weights_test {

namespace {

using namespace tests;
namespace fs = std::filesystem;

/// Tied, transposed, frozen, ignored; buffers of two types.
struct OddNetImpl : torch::nn::Module {
  OddNetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    again = register_parameter("again", embedding->weight);
    lstm = register_module("lstm", torch::nn::LSTM(6, 5));
    norm = register_module("norm", torch::nn::BatchNorm1d(5));
    outside = register_module("outside", torch::nn::Linear(5, 6));
    turned = register_parameter("turned", torch::randn({7, 3}).t(), false);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear outside{nullptr};
  at::Tensor again;
  at::Tensor turned;
};
TORCH_MODULE(OddNet);

OddNet make_net(uint64_t seed) {
  torch::manual_seed(seed);
  OddNet net;
  net->norm->running_mean.normal_();
  net->norm->num_batches_tracked.fill_(17);
  return net;
}

void expect_same(const torch::nn::Module& got, const torch::nn::Module& want) {
  const auto compare = [](const auto& a, const auto& b) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& item : b) {
      EXPECT_TRUE(a[item.key()].equal(item.value())) << item.key();
    }
  };
  compare(got.named_parameters(), want.named_parameters());
  compare(got.named_buffers(), want.named_buffers());
}

EngineOptions options_of(int zero_stage) {
  auto options = group_per_layer();
  options.sharding.zero_stage = zero_stage;
  options.sharding.modules = {
      {.path = "outside", .options = {.ignored = true}}};
  return options;
}

} // namespace

TEST(SaveWeights, WritesParametersAndBuffersOfAShardedModel) {
  for (const int ranks : {1, 2, 3}) {
    for (const int zero_stage : {1, 3}) {
      const TemporaryFolder folder;
      run_ranks(ranks, [&](World& world) {
        const auto want = make_net(1);
        auto net = make_net(1);
        auto engine = wrap(net, options_of(zero_stage));
        engine.save_weights(folder / "new/model");
        engine.save_weights(folder / "whole.safetensors");
        auto loaded = make_net(2);
        load_weights(*loaded, folder / "new/model/model.safetensors");
        expect_same(*loaded, *want);
        // The engine goes on, and reads what it wrote.
        engine.load_weights(folder / "whole.safetensors");
        if (world.rank() == 0) {
          const auto file =
              runtime::SafetensorsFile::open(folder / "whole.safetensors");
          EXPECT_TRUE(file.contains("again"));
          EXPECT_FALSE(file.contains("embedding.weight")); // the same one
          EXPECT_EQ(
              file.entries().size(),
              want->named_parameters().size() - 1 +
                  want->named_buffers().size());
          EXPECT_EQ(file.metadata().at("format"), "pt");
        }
      });
    }
  }
}

// As a plain module writes it: byte for byte.
TEST(SaveWeights, WritesTheSameFileForAWholeModule) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    auto net = make_net(1);
    if (world.rank() == 0) {
      save_weights(*net, folder / "plain.safetensors");
    }
    auto engine = wrap(net, options_of(3));
    engine.save_weights(folder / "sharded.safetensors");
    if (world.rank() == 0) {
      EXPECT_EQ(
          runtime::read_text_file(folder / "plain.safetensors"),
          runtime::read_text_file(folder / "sharded.safetensors"));
      expect_error(
          [&] { save_weights(*net, folder / "x.safetensors"); },
          {"is sharded", "Engine::save_weights"});
    }
  });
}

TEST(SaveWeights, HoldsOneTensorAtATimeOnRank0) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    runtime::install_cpu_memory_counter();
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) {
      net->push_back(torch::nn::Linear(512, 512)); // 1 MiB each
    }
    auto engine = wrap(net, group_per_layer());
    const int64_t before = runtime::cpu_bytes_live();
    runtime::reset_cpu_bytes_peak();
    engine.save_weights(folder.path());
    const int64_t peak = runtime::cpu_bytes_peak() - before;
    if (world.rank() == 0) {
      EXPECT_GE(peak, 1 << 20);
      EXPECT_LT(peak, 3 << 19);
    } else {
      EXPECT_LT(peak, 1 << 16); // sends from its shard
    }
  });
}

TEST(SaveWeights, TellsAllRanksWhenTheDiskRefuses) {
  const TemporaryFolder folder;
  runtime::write_file_atomically(folder / "file", "in the way");
  run_ranks(2, [&](World& world) {
    auto net = make_net(1);
    auto engine = wrap(net, options_of(3));
    expect_error(
        [&] { engine.save_weights(folder / "file/model"); },
        {world.rank() == 0 ? "cannot create the folder"
                           : "failed on 1 other rank"});
    engine.save_weights(folder / "after");
  });
  EXPECT_TRUE(fs::exists(folder / "after/model.safetensors"));
}

// The partitions of tensor-parallel ranks are written as one rank would write
// the whole, and each rank reads its own again.
TEST(SaveWeights, OfTensorParallelLayersAreWhole) {
  const TemporaryFolder folder;
  run_ranks(2, [&](World& world) {
    const auto layers_over = [](Communicator& group, uint64_t seed) {
      const TensorParallel tp{&group};
      auto net = std::make_shared<torch::nn::Module>();
      net->register_module(
          "up",
          ColumnParallelLinear(
              tp, ParallelLinearOptions{.in = 4, .out = 10, .unit = 2}));
      net->register_module(
          "down",
          RowParallelLinear(
              tp, ParallelLinearOptions{.in = 10, .out = 4, .unit = 2}));
      init_parameters(*net, seed);
      materialize(*net);
      return net;
    };
    auto tensor = world.new_communicator("tensor");
    const auto net = layers_over(*tensor, 1);
    save_weights(*net, folder / "parts.safetensors");
    if (world.rank() == 0) {
      Communicator alone("alone");
      save_weights(*layers_over(alone, 1), folder / "whole.safetensors");
      EXPECT_EQ(
          runtime::read_text_file(folder / "parts.safetensors"),
          runtime::read_text_file(folder / "whole.safetensors"));
    }
    const auto again = layers_over(*tensor, 2);
    load_weights(*again, folder / "parts.safetensors");
    expect_same(*again, *net);
  });
}

} // namespace tessera::engine::save_weights_test
