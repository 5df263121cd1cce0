// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/parallel_dropout.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/checkpointing/checkpoint.h"
#include "tessera/sharding/collectives/group_operations.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace tessera::sharding::parallel_dropout_test {

namespace {

constexpr double kProbability = 0.3;

at::Tensor layer(int64_t number, const at::Tensor& x) {
  const RandomLayerScope random(number, x.device());
  return torch::dropout(torch::dropout(x, kProbability, true) + 1, 0.1, true);
}

} // namespace

TEST(RandomKey, LayersDrawTheSameOnWhateverStage) {
  const at::Tensor x = torch::ones({4, 50});
  const RandomKey key{.seed = 7, .step = 3, .micro_batch = 2};
  std::vector<at::Tensor> together;
  {
    const RandomKeyScope random(key, at::kCPU);
    torch::rand({3}); // an embedding's, say
    for (int64_t i = 0; i < 3; ++i) {
      together.push_back(layer(i, x));
    }
  }
  for (const int64_t i : {2, 0, 1}) {
    const RandomKeyScope random(key, at::kCPU);
    EXPECT_TRUE(layer(i, x).equal(together[static_cast<size_t>(i)])) << i;
  }
  EXPECT_FALSE(together[0].equal(together[1]));
}

TEST(RandomKey, EveryNumberOfItCounts) {
  const auto drawn = [](const RandomKey& key, int64_t number) {
    const RandomKeyScope random(key, at::kCPU);
    const RandomLayerScope in_layer(number, at::kCPU);
    return torch::rand({2}, at::kDouble)[0].item<double>();
  };
  std::vector<double> all;
  for (uint64_t i = 0; i < 256; ++i) {
    const auto bit = [&](int n) { return static_cast<int64_t>(i >> n & 3); };
    all.push_back(
        drawn({static_cast<uint64_t>(bit(0)), bit(2), bit(4)}, bit(6)));
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST(RandomKey, LeavesGeneratorsAsTheyWere) {
  torch::manual_seed(4);
  const at::Tensor expected = torch::rand({8});
  torch::manual_seed(4);
  {
    const RandomKeyScope random({}, at::kCPU);
    layer(0, torch::ones({5}));
    torch::rand({2});
  }
  EXPECT_TRUE(torch::rand({8}).equal(expected));
  // Without a key a layer draws as any code does.
  torch::manual_seed(4);
  const RandomLayerScope layer_scope(3, at::kCPU);
  EXPECT_TRUE(torch::rand({8}).equal(expected));
}

// As under pipelining: the next micro-batch's forward comes before the backward
// of the first.
TEST(RandomKey, IsThatOfTheMicroBatchWhenALayerIsComputedAgain) {
  const auto gradients = [](bool checkpointed) {
    std::vector<at::Tensor> inputs;
    std::vector<at::Tensor> outputs;
    for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const RandomKeyScope random({.micro_batch = micro_batch}, at::kCPU);
      inputs.push_back(torch::ones({4, 50}).requires_grad_());
      const auto run = [](const at::Tensor& x) { return layer(5, x).square(); };
      outputs.push_back(
          checkpointed ? checkpoint({.trains = true}, run, inputs.back())
                       : run(inputs.back()));
    }
    outputs[0].sum().backward();
    outputs[1].sum().backward();
    return std::vector<at::Tensor>{inputs[0].grad(), inputs[1].grad()};
  };
  const auto expected = gradients(false);
  const auto found = gradients(true);
  EXPECT_TRUE(found[0].equal(expected[0]));
  EXPECT_TRUE(found[1].equal(expected[1]));
  EXPECT_FALSE(found[0].equal(found[1]));
}

TEST(ParallelDropout, TakesItsPartOfTheWholeMask) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [](World& world) {
      auto group = world.new_communicator("tensor");
      const TensorParallel tp{group.get(), true};
      const at::Tensor full = torch::ones({3, 12, 7, 5}, at::kDouble);
      for (const int64_t dim : {1, 2, -1}) {
        const DimSplit split(full.size(dim), group->size());
        torch::manual_seed(2);
        const at::Tensor expected = torch::dropout(full, kProbability, true);
        const at::Tensor next = torch::rand({4});
        torch::manual_seed(2);
        const at::Tensor part = dropout_part(
            take_part(full, dim, split, *group), kProbability, dim, split, tp);
        EXPECT_TRUE(torch::rand({4}).equal(next)) << dim;
        EXPECT_TRUE(gather_parts(part, dim, split, *group).equal(expected))
            << dim;
      }
      torch::manual_seed(2);
      const at::Tensor expected = torch::dropout(full, kProbability, true);
      torch::manual_seed(2);
      const at::Tensor divided =
          torch::dropout(shard_tensor(full, 1, tp), kProbability, true);
      EXPECT_EQ(local_tensor(divided).size(1), 12 / group->size());
      EXPECT_TRUE(full_tensor(divided).equal(expected));
    });
  }
}

TEST(ParallelDropout, DropsAllOrNothing) {
  Communicator alone("alone");
  const TensorParallel tp{&alone};
  const at::Tensor x = torch::rand({2, 6});
  const DimSplit split(6, 1);
  EXPECT_TRUE(dropout_part(x, 0, 1, split, tp).equal(x));
  EXPECT_TRUE(dropout_part(x, 1, 1, split, tp).equal(torch::zeros({2, 6})));
}

TEST(ParallelDropout, SaysWhichPartItExpects) {
  Communicator alone("alone");
  expect_error(
      [&] {
        dropout_part(torch::rand({2, 6}), 0.5, 1, DimSplit(7, 1), {&alone});
      },
      {"dropout_part", "[2, 6]", "7 elements", "'alone'"});
}

} // namespace tessera::sharding::parallel_dropout_test
