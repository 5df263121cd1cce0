// SPDX-License-Identifier: Apache-2.0
// Checkpointed blocks that keep a part of their inputs (ZeRO-R).
#include "support/ranks.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/checkpointing/transformer_block_list.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::sharding::divided_inputs_test {

namespace {

constexpr int kBlocks = 3;
constexpr int64_t kRows = 501; // uneven over 2 and 3 ranks, as 7 columns are
constexpr int64_t kFeatures = 7;

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : linear(register_module(
            "linear",
            torch::nn::Linear(kFeatures, kFeatures))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    return torch::dropout(torch::tanh(linear->forward(x)), 0.1, true)
               .t()
               .contiguous()
               .t() * // other strides than sizes say
           mask;
  }

  torch::nn::Linear linear;
};
TORCH_MODULE(Layer);

struct Step {
  std::vector<at::Tensor> results; ///< loss and gradients
  int64_t kept_bytes = 0; ///< between forward and backward
};

Step step(Communicator* divide_over) {
  torch::manual_seed(3);
  TransformerBlockList<Layer> layers(
      std::vector<Layer>{Layer(), Layer(), Layer()},
      CheckpointOptions{.divide_inputs_over = divide_over});
  const at::Tensor input =
      torch::randn({kRows, kFeatures}).set_requires_grad(true);
  const at::Tensor mask = torch::ones({kRows, 1});
  const int64_t before = runtime::cpu_bytes_live();
  const at::Tensor loss = layers->forward(input * 1, mask).sum();
  Step done;
  done.kept_bytes = runtime::cpu_bytes_live() - before;
  loss.backward();
  done.results = {loss.detach(), input.grad()};
  for (const at::Tensor& parameter : layers->parameters()) {
    done.results.push_back(parameter.grad());
  }
  return done;
}

} // namespace

TEST(DividedInputs, TakeAPartOfTheMemoryForTheSameBits) {
  for (const int ranks : {1, 2, 3}) {
    tests::run_ranks(ranks, [](World& world) {
      runtime::install_cpu_memory_counter();
      auto group = world.new_communicator("tensor");
      const Step full = step(nullptr);
      const Step divided = step(group.get());
      ASSERT_EQ(full.results.size(), divided.results.size());
      for (size_t i = 0; i < full.results.size(); ++i) {
        EXPECT_TRUE(full.results[i].equal(divided.results[i])) << i;
      }
      // Allocations are counted as they are asked for, rounded up to the
      // allocator's 64 bytes.
      const int64_t numel = kRows * kFeatures;
      const int64_t part = (numel + group->size() - 1) / group->size();
      EXPECT_NEAR(
          static_cast<double>(full.kept_bytes - divided.kept_bytes),
          static_cast<double>(kBlocks * (numel - part) * 4),
          kBlocks * 64);
    });
  }
}

} // namespace tessera::sharding::divided_inputs_test
