// SPDX-License-Identifier: Apache-2.0
// Results of cheap operators that are computed again: the same bits for less
// memory, in unmodified modules.
#include "tessera/sharding/checkpointing/recomputed_operators.h"

#include "tessera/runtime/memory/saved_tensor_hooks.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace tessera::sharding::recomputed_operators_test {

namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kInner = 256;
constexpr int64_t kInnerBytes = kRows * kInner * 4;

/// As a user would write it.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool is_gated) : gated(is_gated) {
    up = register_module("up", torch::nn::Linear(16, kInner));
    gate = register_module("gate", torch::nn::Linear(16, kInner));
    down = register_module("down", torch::nn::Linear(kInner, 16));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor inner =
        gated ? torch::silu(gate(x)) * up(x)
              : torch::dropout(torch::gelu(up(x)), 0.25, /*train=*/true);
    return down(inner);
  }

  bool gated;
  torch::nn::Linear up{nullptr}, gate{nullptr}, down{nullptr};
};
TORCH_MODULE(Net);

/// As long as it lives, cheap operators are recomputed if `recompute`.
std::unique_ptr<runtime::SavedTensorScope> recomputing(bool recompute) {
  return recompute ? std::make_unique<runtime::SavedTensorScope>(
                         std::make_shared<OperatorRecomputation>())
                   : nullptr;
}

struct Step {
  std::vector<at::Tensor> results; ///< loss and gradients
  int64_t kept_bytes = 0; ///< between forward and backward
};

/// @param dims of the input; of a matrix, linear layers keep it itself, else a
///   view of it.
Step step(bool gated, bool recompute, int dims) {
  const auto scope = recomputing(recompute);
  torch::manual_seed(4);
  Net net(gated);
  at::Tensor input = torch::randn({kRows, 16});
  if (dims == 3) {
    input = input.view({4, kRows / 4, 16});
  }
  input.set_requires_grad(true);
  const int64_t before = runtime::cpu_bytes_live();
  const at::Tensor loss = net(input).square().mean();
  Step done;
  done.kept_bytes = runtime::cpu_bytes_live() - before;
  loss.backward();
  done.results = {loss.detach(), input.grad()};
  for (const at::Tensor& parameter : net->parameters()) {
    if (parameter.grad().defined()) {
      done.results.push_back(parameter.grad());
    }
  }
  return done;
}

} // namespace

TEST(RecomputedOperators, TakeLessMemoryForTheSameBits) {
  runtime::install_cpu_memory_counter();
  for (const bool gated : {false, true}) {
    for (const int dims : {2, 3}) {
      SCOPED_TRACE(testing::Message() << gated << dims);
      const Step kept = step(gated, false, dims);
      const Step again = step(gated, true, dims);
      ASSERT_EQ(kept.results.size(), again.results.size());
      for (size_t i = 0; i < kept.results.size(); ++i) {
        EXPECT_TRUE(kept.results[i].equal(again.results[i])) << i;
      }
      // Not gated: the dropped activation. Gated: silu(gate), and the product.
      // The counter adds up to 64 bytes for each.
      const int64_t tensors = gated ? 2 : 1;
      const int64_t saved = kept.kept_bytes - again.kept_bytes;
      EXPECT_GE(saved, tensors * kInnerBytes);
      EXPECT_LE(saved, tensors * (kInnerBytes + 64));
    }
  }
}

TEST(RecomputedOperators, SupportGradAndDoubleBackward) {
  const auto second = [](bool recompute) {
    const auto scope = recomputing(recompute);
    torch::manual_seed(4);
    Net net(/*is_gated=*/true);
    const at::Tensor x = torch::randn({3, 16}).set_requires_grad(true);
    const at::Tensor gradient = torch::autograd::grad(
        {net(x).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    gradient.square().sum().backward();
    return std::vector<at::Tensor>{
        gradient.detach(), net->down->weight.grad(), x.grad()};
  };
  const auto expected = second(false);
  const auto found = second(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(found[i].equal(expected[i])) << i;
  }
}

// What is changed in place afterwards has another history, and is kept.
TEST(RecomputedOperators, KeepWhatIsChangedInPlace) {
  const auto gradient = [](bool recompute) {
    const auto scope = recomputing(recompute);
    torch::manual_seed(4);
    const at::Tensor x = torch::randn({8, 16}).set_requires_grad(true);
    const at::Tensor weight = torch::randn({4, 16}).set_requires_grad(true);
    at::Tensor y = torch::gelu(x);
    y.narrow(0, 0, 2).add_(1);
    torch::linear(y, weight).square().sum().backward();
    return weight.grad();
  };
  EXPECT_TRUE(gradient(true).equal(gradient(false)));
}

TEST(RecomputedOperators, AreNotRoundedByAutocast) {
  const auto gradient = [](bool recompute) {
    const auto scope = recomputing(recompute);
    torch::manual_seed(4);
    const at::Tensor x = torch::randn({8, 16}).set_requires_grad(true);
    Net net(/*is_gated=*/true);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    net(x).to(at::kFloat).square().sum().backward();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return net->down->weight.grad();
  };
  EXPECT_TRUE(gradient(true).equal(gradient(false)));
}

} // namespace tessera::sharding::recomputed_operators_test
