// SPDX-License-Identifier: Apache-2.0
// An engine that recomputes cheap operators: the same bits for less memory, on
// sharded weights, and together with activations on the host.
#include "support/ranks.h"
#include "tessera/engine/engine.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace tessera::tests::recompute_operators_test {

namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kInner = 96;

struct GatedImpl : torch::nn::Module {
  GatedImpl() {
    up = register_module("up", torch::nn::Linear(24, kInner));
    gate = register_module("gate", torch::nn::Linear(24, kInner));
    down = register_module("down", torch::nn::Linear(kInner, 24));
    scale = register_parameter("scale", torch::ones({24}));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    // A product with a weight is recomputed too, with the weight unsharded.
    const torch::Tensor y = x * scale;
    return x + down(torch::dropout(torch::silu(gate(y)) * up(y), 0.2, true));
  }

  torch::nn::Linear up{nullptr}, gate{nullptr}, down{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Gated);

struct Trained {
  std::map<std::string, at::Tensor> parameters;
  int64_t kept_bytes = 0; ///< between forward and backward
};

Trained train(World& world, const EngineOptions& given) {
  torch::manual_seed(1);
  torch::nn::Sequential net{Gated(), Gated(), Gated()};
  EngineOptions options = given;
  options.log_memory = false;
  options.sharding.zero_stage = 3;
  options.sharding.groups.min_group_numel = 0;
  auto engine = wrap(net.ptr(), options);
  Trained trained;
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(10 * step + world.rank());
    const at::Tensor x = torch::randn({kRows, 24});
    const int64_t before = runtime::cpu_bytes_live();
    const at::Tensor loss = net->forward(x).square().mean();
    trained.kept_bytes = runtime::cpu_bytes_live() - before;
    engine.backward(loss);
    engine.step();
  }
  engine.for_each_parameter(
      [&](const std::string& name, const at::Tensor& value) {
        trained.parameters[name] = value.clone();
      });
  return trained;
}

} // namespace

TEST(RecomputeOperators, KeepsTheBits) {
  run_ranks(2, [](World& world) {
    runtime::install_cpu_memory_counter();
    const Trained plain = train(world, {});
    EngineOptions options;
    options.recompute_operators = true;
    const Trained again = train(world, options);
    // Of each of three blocks silu(gate), and its product with up and mask.
    EXPECT_GE(plain.kept_bytes - again.kept_bytes, 3 * 2 * kRows * kInner * 4);
    options.placement.activations = MemoryTier::kHost;
    options.offload.min_tensor_bytes = 0;
    options.offload.activation_host_bytes = int64_t{1} << 26;
    const Trained on_host = train(world, options);
    for (const auto& [name, value] : plain.parameters) {
      EXPECT_TRUE(value.equal(again.parameters.at(name))) << name;
      EXPECT_TRUE(value.equal(on_host.parameters.at(name))) << name;
    }
  });
}

} // namespace tessera::tests::recompute_operators_test
