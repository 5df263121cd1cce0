// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank's weights and activations against the formulas that
// docs/parallel.md states.
#include "support/ranks.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/dtensor.h"
#include "tessera/zoo/layers/layer_plan.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <numeric>

namespace tessera::zoo::layout_bytes_test {
namespace {

constexpr int64_t kFeatures = 64; // h
constexpr int64_t kHeads = 8; // a
constexpr int64_t kLayers = 4; // L
constexpr int64_t kVocab = 128; // V
constexpr int64_t kPositions = 32; // P

/// Of a GPT's stage: its layers over t ranks, on the first stage embeddings, on
/// the last the norm and the tied head.
int64_t gpt_weights(int64_t layers, int64_t t, bool first, bool last) {
  constexpr int64_t h = kFeatures;
  int64_t count = layers * ((12 * h * h + 7 * h) / t + 6 * h);
  if (first || last) {
    count += kVocab * h / t;
  }
  if (first) {
    count += kPositions * h;
  }
  if (last) {
    count += 2 * h;
  }
  return count;
}

int64_t numel_of(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  return std::accumulate(
      parameters.begin(),
      parameters.end(),
      int64_t{0},
      [](int64_t sum, const at::Tensor& one) { return sum + one.numel(); });
}

/// What a pre-norm layer keeps for backward, in numbers of float32 for every
/// token of a batch, its input and its result included.
double layer_activations(double t, bool sequence) {
  constexpr double h = kFeatures;
  // Between layers: the input, what attention adds to, the result; of both
  // norms mean and deviation, and what they make: with divided sequences it is
  // gathered again in backward.
  const double between = 5 * h + 4;
  // Query, key, value, what comes out, the softmax's denominators; the inner
  // features before and after their activation.
  const double divided = 4 * h + kHeads + 2 * 4 * h;
  return (sequence ? between / t : between) + divided / t;
}

} // namespace

TEST(LayoutBytes, OfWeightsAreTheFormulas) {
  tests::run_ranks(4, [](World& world) {
    const nlohmann::json config{
        {"model_type", "gpt2"},
        {"vocab_size", kVocab},
        {"n_embd", kFeatures},
        {"n_layer", kLayers},
        {"n_head", kHeads},
        {"n_positions", kPositions}};
    for (const auto& [tensor, pipeline] :
         {std::pair(1, 1), std::pair(4, 1), std::pair(1, 4), std::pair(2, 2)}) {
      const int shard = 4 / (tensor * pipeline);
      ParallelGroups groups(
          world,
          ParallelMesh(
              {.shard = shard, .tensor = tensor, .pipeline = pipeline}, 4, 4),
          at::kCPU);
      const int stage =
          groups.mesh().index(ParallelGroup::kPipeline, world.rank());
      const LayerContext layers =
          tensor == 1
              ? LayerContext()
              : LayerContext(TensorParallel{&groups[ParallelGroup::kTensor]});
      const auto model = from_config(
          config,
          {.architecture = "GPT2LMHeadModel",
           .context = layers.on_stage({pipeline, 1, stage, {}})});
      EXPECT_EQ(
          numel_of(*model),
          gpt_weights(
              kLayers / pipeline,
              tensor,
              stage == 0,
              stage + 1 == pipeline && pipeline > 1) +
              (pipeline == 1 ? 2 * kFeatures : 0))
          << "tensor " << tensor << ", stage " << stage << " of " << pipeline;
    }
  });
}

TEST(LayoutBytes, OfActivationsAreTheFormulas) {
  runtime::install_cpu_memory_counter();
  tests::run_ranks(4, [](World& world) {
    for (const int tensor : {1, 2, 4}) {
      for (const bool sequence : {false, true}) {
        if (tensor == 1 && sequence) {
          continue;
        }
        ParallelGroups groups(
            world,
            ParallelMesh({.shard = 4 / tensor, .tensor = tensor}, 4, 4),
            at::kCPU);
        TransformerLayerOptions options;
        options.norm.features = kFeatures;
        options.attention.features = kFeatures;
        options.attention.heads = kHeads;
        options.attention.causal = true;
        options.feed_forward.features = kFeatures;
        options.feed_forward.inner = 4 * kFeatures;
        const TensorParallel tp{&groups[ParallelGroup::kTensor], sequence};
        TransformerLayer layer(
            tensor == 1 ? LayerContext() : LayerContext(tp), options);
        if (tensor > 1) {
          apply_tensor_plan(*layer, layer_plan(*layer, tensor), tp);
          init_parameters(*layer);
          materialize(*layer);
        }
        constexpr int64_t kRows = 4;
        constexpr int64_t kTokens = 128;
        const int64_t own = sequence ? kTokens / tensor : kTokens;
        const auto forward = [&] {
          at::Tensor x = torch::randn({kRows, own, kFeatures}).requires_grad_();
          if (sequence) {
            x = from_local_tensor(x, 1, tp);
          }
          return layer->forward(x);
        };
        forward(); // what is made once
        const int64_t before = runtime::cpu_bytes_live();
        const at::Tensor result = forward();
        const auto kept =
            static_cast<double>(runtime::cpu_bytes_live() - before);
        const double said = layer_activations(tensor, sequence) * 4 *
                            static_cast<double>(kRows * kTokens);
        // Tensors are rounded up to 64 bytes, and there are some small ones.
        EXPECT_NEAR(kept, said, 0.01 * said)
            << "tensor " << tensor << (sequence ? ", sequence" : "");
      }
    }
  });
}

} // namespace tessera::zoo::layout_bytes_test
