// SPDX-License-Identifier: Apache-2.0
// Lazy and other modules on CUDA hold the numbers that they would have on the
// CPU, whole and divided.
#include "support/cuda_ranks_test.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy.h"
#include "tessera/sharding/move_module.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::sharding::move_module_gpu_test {

namespace {

using namespace tests;

class MoveModuleCuda : public CudaRanksTest {};

/// Normal, uniform and constant initialisers, more than one part of a copy
/// from the host, and a buffer.
struct NetImpl : torch::nn::Module {
  NetImpl() : embedding(20'000, 256), linear(256, 64), norm(64) {
    register_module("embedding", embedding);
    register_module("linear", linear);
    register_module("norm", norm);
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Net);

Net lazy_net(bool on_cuda) {
  auto net = lazy([] { return Net(); }, {.seed = 11});
  if (on_cuda) {
    move_module(*net, world().device());
  }
  return net;
}

void expect_equal(torch::nn::Module& got, torch::nn::Module& expected) {
  const auto values = got.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    EXPECT_TRUE(values[item.key()].is_cuda()) << item.key();
    EXPECT_TRUE(torch::equal(values[item.key()].cpu(), item.value()))
        << item.key();
  }
}

} // namespace

TEST_F(MoveModuleCuda, ALazyModuleIsMaterializedThere) {
  run_ranks(
      1,
      [](World&) {
        auto expected = lazy_net(false);
        materialize(*expected);
        auto net = lazy_net(true);
        EXPECT_TRUE(is_deferred(net->embedding->weight));
        materialize(*net);
        expect_equal(*net, *expected);
        EXPECT_TRUE(net->norm->running_mean.is_cuda());
      },
      kLimits);
}

TEST_F(MoveModuleCuda, AModuleWithMemoryIsCopied) {
  run_ranks(
      1,
      [](World& world) {
        torch::manual_seed(3);
        Net expected;
        torch::manual_seed(3);
        Net net;
        move_module(*net, world.device());
        expect_equal(*net, *expected);
      },
      kLimits);
}

// Two ranks share the device over Gloo; the buffers of one module are left on
// the host, as those of a user may be.
TEST_F(MoveModuleCuda, ALazyModuleIsDividedThere) {
  run_ranks(
      2,
      [](World&) {
        auto expected = lazy_net(false);
        materialize(*expected);
        auto net = lazy_net(true);
        net->norm->running_mean.set_data(
            net->norm->running_mean.cpu() + world().rank());
        EngineOptions options;
        options.log_memory = false;
        options.sharding.groups.min_group_numel = 64;
        auto engine = wrap(net, options);
        EXPECT_EQ(net->norm->running_mean.abs().max().item<float>(), 0);
        engine.unwrap();
        expect_equal(*net, *expected);
      },
      kLimits);
}

} // namespace tessera::sharding::move_module_gpu_test
