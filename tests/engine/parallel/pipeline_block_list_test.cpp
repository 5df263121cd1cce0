// SPDX-License-Identifier: Apache-2.0
// A module with a pipelined list of blocks, every rank with batches of its own,
// held against one rank with all batches.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/pipeline_transformer_block_list.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::engine::pipeline_block_list_test {

namespace {

constexpr int kBlocks = 5; // uneven over 2 stages
constexpr int kSteps = 3;
constexpr int64_t kVocab = 13;
constexpr int64_t kFeatures = 6;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int number) {
    torch::manual_seed(static_cast<uint64_t>(100 + number));
    up = register_module("up", torch::nn::Linear(kFeatures, 9));
    down = register_module("down", torch::nn::Linear(9, kFeatures));
    to(torch::kDouble);
  }
  /// @param bias of the whole batch, with a gradient; @param mask maybe
  ///     undefined.
  at::Tensor forward(
      const at::Tensor& x,
      const at::Tensor& bias,
      const at::Tensor& mask) {
    const at::Tensor y = down(up(x + bias).tanh());
    return x + (mask.defined() ? y * mask : y);
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

template <typename List>
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(List blocks) : blocks(std::move(blocks)) {
    torch::manual_seed(7);
    words = register_module("words", torch::nn::Embedding(kVocab, kFeatures));
    bias = register_parameter("bias", torch::randn({kFeatures}));
    register_module("blocks", this->blocks.ptr());
    to(torch::kDouble);
  }

  at::Tensor loss(const at::Tensor& ids, bool masked) {
    const at::Tensor mask =
        masked ? ids.remainder(2).unsqueeze(-1).to(torch::kDouble)
               : at::Tensor();
    const at::Tensor x = blocks->forward(
        words(ids), bias.expand({ids.size(0), ids.size(1), kFeatures}), mask);
    return torch::nn::functional::cross_entropy(
        at::linear(x, words->weight).flatten(0, 1), ids.roll(1, 1).flatten());
  }

  torch::nn::Embedding words{nullptr};
  at::Tensor bias;
  List blocks;
};

using Alone = ModelImpl<TransformerBlockList<Block>>;
using Piped = ModelImpl<PipelineTransformerBlockList<Block>>;

std::shared_ptr<Alone> make_alone() {
  std::vector<Block> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    blocks.push_back(Block(i));
  }
  return std::make_shared<Alone>(
      TransformerBlockList<Block>(blocks, CheckpointOptions{false}));
}

at::Tensor batch_of(int step, int rank) {
  torch::manual_seed(static_cast<uint64_t>(10 * step + rank));
  return torch::randint(kVocab, {2, 4}, torch::kLong);
}

EngineOptions options() {
  EngineOptions options;
  options.sharding.groups.min_group_numel = 0;
  options.optimizer.lr = 1e-2;
  options.log_memory = false;
  return options;
}

} // namespace

class PipelineBlockList : public ::testing::TestWithParam<bool> {};

// Float64 in another order over three steps of AdamW.
TEST_P(PipelineBlockList, IsThatOfOneRank) {
  const bool checkpointed = GetParam();
  tests::run_ranks(4, [&](World& world) {
    World one(0, 1, 0, nullptr, {});
    const auto alone = make_alone();
    Engine reference(one, alone, options());
    std::vector<double> expected;
    for (int step = 0; step < kSteps; ++step) {
      for (int rank = 0; rank < world.size(); ++rank) {
        const at::Tensor loss =
            alone->loss(batch_of(step, rank), step == 1) / world.size();
        reference.backward(loss);
        if (rank == world.rank()) {
          expected.push_back(loss.item<double>() * world.size());
        }
      }
      expected.push_back(reference.clip_grad_norm(0.1));
      reference.step();
    }

    const ParallelMesh mesh({.shard = 2, .pipeline = 2}, 4, 4);
    const auto model =
        std::make_shared<Piped>(PipelineTransformerBlockList<Block>(
            world,
            mesh,
            kBlocks,
            [](int number) { return Block(number); },
            CheckpointOptions{checkpointed}));
    EngineOptions parallel = options();
    parallel.parallel = &mesh;
    Engine engine(world, model, parallel);
    std::vector<double> found;
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor loss =
          model->loss(batch_of(step, world.rank()), step == 1);
      found.push_back(loss.item<double>());
      engine.backward(loss);
      found.push_back(engine.clip_grad_norm(0.1));
      engine.step();
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(found.at(i), expected[i], 1e-9) << i;
    }
    {
      const torch::NoGradGuard no_grad;
      EXPECT_NEAR(
          model->loss(batch_of(9, world.rank()), false).item<double>(),
          alone->loss(batch_of(9, world.rank()), false).item<double>(),
          1e-8);
    }
    std::map<std::string, at::Tensor> full;
    reference.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          full[name] = value.clone();
        });
    engine.for_each_parameter(
        [&](const std::string& name, const at::Tensor& value) {
          EXPECT_TRUE(value.allclose(full.at(name), 1e-7, 1e-8)) << name;
        });
  });
}

INSTANTIATE_TEST_SUITE_P(Checkpointed, PipelineBlockList, ::testing::Bool());

TEST(PipelineBlockListErrors, NameBatchesThatDiffer) {
  tests::run_ranks(2, [](World& world) {
    const ParallelMesh mesh({.shard = 1, .pipeline = 2}, 2, 2);
    const auto model =
        std::make_shared<Piped>(PipelineTransformerBlockList<Block>(
            world, mesh, 2, [](int number) { return Block(number); }));
    expect_error(
        [&] {
          model->loss(torch::zeros({2, 3 + world.rank()}, torch::kLong), false);
        },
        {"batches of the same shape"});
  });
}

} // namespace tessera::engine::pipeline_block_list_test
