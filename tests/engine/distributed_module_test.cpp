// SPDX-License-Identifier: Apache-2.0
// A model written with the explicit API, never whole on any rank, against the
// same model materialized and trained by LibTorch.
#include "engine/parity.h"
#include "support/ranks.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/lazy/lazy.h"

namespace tessera::engine::distributed_module_test {

namespace {

using namespace tests;

constexpr int64_t kDim = 10;

struct BlockImpl : DistributedModule {
  BlockImpl()
      : up(register_parameter(
            "up",
            DistributedParameter({3 * kDim, kDim}, kaiming_uniform_init()))),
        down(register_parameter(
            "down",
            DistributedParameter({kDim, 3 * kDim}, normal_init(0, 0.1)))),
        scale(register_parameter(
            "scale",
            DistributedParameter({kDim}, ones_init()))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::nn::functional::linear(x, up).tanh();
    // One as a tensor of its own: the gradient comes back through it.
    return x + torch::nn::functional::linear(h, down.gather()) * scale.tensor();
  }
  DistributedParameter up, down, scale;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    std::vector<CheckpointBlock<Block>> blocks;
    for (const int stage : {3, 2, 1, 3}) {
      blocks.emplace_back(
          Block(), CheckpointOptions{.use_checkpoint = stage != 2});
      configure(*blocks.back(), {.zero_stage = stage});
    }
    layers = register_module("layers", TransformerBlockList<Block>(blocks));
    head = register_module("head", torch::nn::Linear(kDim, 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return head(layers(x));
  }
  TransformerBlockList<Block> layers = nullptr;
  torch::nn::Linear head = nullptr;
};
TORCH_MODULE(Net);

Net declared_net() {
  Net net;
  init_parameters(*net, 11);
  return net;
}

/// The plain copies are materialized; what is wrapped stays declared.
Subject<Net> subject() {
  return {
      declared_net,
      [](Net& net, int64_t part, int64_t parts) {
        const at::Tensor x = torch::randn({12, kDim}).chunk(parts)[part];
        return net(x).square().mean();
      },
      [] {
        Net net = declared_net();
        materialize(*net);
        return net;
      }};
}

} // namespace

class DistributedModuleTest : public ::testing::TestWithParam<int> {};

TEST_P(DistributedModuleTest, TrainsAsTheMaterializedModel) {
  run_ranks(GetParam(), [](World& world) {
    for (const int64_t min_group_numel : {0, 100'000}) {
      auto options = parity_options(world, min_group_numel);
      expect_parity(world, subject(), options, "distributed");
    }
  });
}

TEST_P(DistributedModuleTest, BlocksKeepTheirZeroStages) {
  run_ranks(GetParam(), [](World& world) {
    const auto make = subject();
    Net net = make.make();
    auto engine = wrap(net, parity_options(world, 0).engine);
    for (int step = 0; step < 3; ++step) {
      engine.backward(make.loss(net, 0, 1));
      engine.step();
    }
    const auto before = engine.stats().paging;
    engine.backward(make.loss(net, 0, 1));
    engine.step();
    const auto after = engine.stats().paging;
    EXPECT_EQ(after.on_demand_unshards, before.on_demand_unshards);
    if (world.size() > 1) {
      // Of five groups: the stage-3 blocks once in forward, once in backward;
      // the others once; the last two at most once more.
      EXPECT_LE(after.planned_unshards - before.planned_unshards, 7);
      EXPECT_GE(after.planned_unshards - before.planned_unshards, 5);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DistributedModuleTest, ::testing::Range(1, 4));

} // namespace tessera::engine::distributed_module_test
