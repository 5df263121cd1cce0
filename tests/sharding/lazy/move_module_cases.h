// SPDX-License-Identifier: Apache-2.0
#pragma once
// Lazy and other modules on a device hold the numbers that they would have on
// the CPU, whole and divided.

#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "tessera/sharding/lazy/replace_storage.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::tests::move_module_cases {

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

inline Net lazy_net(bool on_device) {
  auto net = lazy([] { return Net(); }, {.seed = 11});
  if (on_device) {
    move_module(*net, world().device());
  }
  return net;
}

/// Moved to the world's device.
inline void expect_equal(torch::nn::Module& got, torch::nn::Module& expected) {
  const auto values = got.named_parameters();
  for (const auto& item : expected.named_parameters()) {
    EXPECT_EQ(values[item.key()].device(), world().device()) << item.key();
    EXPECT_TRUE(torch::equal(values[item.key()].cpu(), item.value()))
        << item.key();
  }
}

inline void expect_materialized_there() {
  auto expected = lazy_net(false);
  materialize(*expected);
  auto net = lazy_net(true);
  EXPECT_TRUE(sharding::is_deferred(net->embedding->weight));
  materialize(*net);
  expect_equal(*net, *expected);
  EXPECT_EQ(net->norm->running_mean.device(), world().device());
}

inline void expect_copied(World& world) {
  torch::manual_seed(3);
  Net expected;
  torch::manual_seed(3);
  Net net;
  move_module(*net, world.device());
  expect_equal(*net, *expected);
}

/// Of two ranks. The buffers of one module are left on the host, as those of a
/// user may be.
inline void expect_divided_there() {
  auto expected = lazy_net(false);
  materialize(*expected);
  auto net = lazy_net(true);
  const at::Tensor local = net->norm->running_mean.cpu() + world().rank();
  sharding::replace_storage(
      net->norm->running_mean, local.storage(), local.scalar_type());
  EngineOptions options;
  options.log_memory = false;
  options.sharding.groups.min_group_numel = 64;
  auto engine = wrap(net, options);
  EXPECT_EQ(net->norm->running_mean.abs().max().item<float>(), 0);
  engine.unwrap();
  expect_equal(*net, *expected);
}

} // namespace tessera::tests::move_module_cases
