// SPDX-License-Identifier: Apache-2.0
// Dropout of layers over 1 to 4 ranks, held against plain layers.
#include "support/ranks.h"
#include "support/tensor_parts.h"
#include "tessera/sharding/lazy/deferred_init.h"
#include "tessera/sharding/tensor_parallel/tensor_specs.h"
#include "tessera/zoo/layers/layer_plan.h"
#include "tessera/zoo/layers/transformer_layer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::zoo::layer_dropout_test {

namespace {

constexpr int64_t kFeatures = 24;

/// With windows and global tokens in place of a causal mask, or without.
TransformerLayers layers_with(
    const LayerContext& context,
    bool checkpointed,
    bool banded) {
  TransformerLayerOptions options;
  options.norm.features = kFeatures;
  options.attention.features = kFeatures;
  options.attention.heads = 8;
  if (banded) {
    options.reach = 3;
  } else {
    options.attention.kv_heads = 4;
    options.attention.causal = true;
  }
  options.attention.dropout = 0.2;
  options.feed_forward.features = kFeatures;
  options.feed_forward.inner = 50; // uneven over 3 and 4 ranks
  options.feed_forward.dropout = 0.1;
  options.dropout = 0.3;
  std::vector<TransformerLayer> layers;
  for (int64_t i = 0; i < 2; ++i) {
    layers.emplace_back(context.numbered(i), options);
  }
  return TransformerLayers(
      layers, CheckpointOptions{.use_checkpoint = checkpointed});
}

/// Loss of whole hidden states, and gradients.
at::Tensor train(
    TransformerLayers& layers,
    const LayerContext& context,
    const at::Tensor& hidden,
    bool banded) {
  const RandomKeyScope random({.seed = 8, .step = 2}, at::kCPU);
  at::Tensor x = context.dropout(context.between(hidden), 0.1, true);
  LayerInput input;
  if (banded) {
    const at::Tensor mask =
        torch::ones({hidden.size(0), hidden.size(1)}, at::kLong);
    mask[0][0] = mask[0][7] = mask[1][3] = 2; // global
    mask[2][11] = 0; // padding
    input.banded = BandedTokens::of(mask, {}, mask);
  }
  x = context.full(layers->forward(x, input));
  const at::Tensor loss = x.square().sum();
  loss.backward();
  return loss.detach();
}

/// In float32 a kernel of the CPU drops attention weights, in float64
/// LibTorch's operators.
struct DropoutCase {
  at::ScalarType dtype;
  int64_t length;
  double loss_tolerance;
  double gradient_tolerance;
};
constexpr DropoutCase kByOperators{at::kDouble, 12, 1e-10, 1e-10};
constexpr DropoutCase kByKernel{at::kFloat, 24, 2e-2, 2e-3};

// A mask that differs in one element changes the loss by 0.1 and more; float64
// in another order by some hundreds of roundings.
void check_dropout(bool banded, const DropoutCase& numbers) {
  for (const int ranks : {1, 2, 3, 4}) {
    tests::run_ranks(ranks, [banded, numbers](World& world) {
      auto group = world.new_communicator("tensor");
      torch::manual_seed(1);
      const LayerContext plain_context;
      auto plain = layers_with(plain_context, false, banded);
      plain->to(numbers.dtype);
      const at::Tensor hidden =
          torch::randn({3, numbers.length, kFeatures}, numbers.dtype);
      const at::Tensor plain_input = hidden.clone().requires_grad_();
      const at::Tensor expected =
          train(plain, plain_context, plain_input, banded);
      const auto full_tensors = plain->named_parameters();
      for (const bool sequence : {false, true}) {
        for (const bool checkpointed : {false, true}) {
          SCOPED_TRACE(sequence ? "sequence" : "whole");
          const LayerContext context(TensorParallel{group.get(), sequence});
          auto divided = layers_with(context, checkpointed, banded);
          apply_tensor_plan(
              *divided,
              layer_plan(*divided, world.size()),
              *context.parallel());
          init_parameters(*divided);
          materialize(*divided);
          divided->to(numbers.dtype);
          const TensorSpecs specs = specs_in(*divided);
          const auto own = [&](const at::Tensor& full,
                               const at::Tensor& parameter) {
            return tests::local_part(
                full, specs.at(parameter.unsafeGetTensorImpl()), world.rank());
          };
          {
            const torch::NoGradGuard no_grad;
            for (const auto& item : divided->named_parameters()) {
              item.value().copy_(own(full_tensors[item.key()], item.value()));
            }
          }
          const at::Tensor input = hidden.clone().requires_grad_();
          const at::Tensor loss = train(divided, context, input, banded);
          EXPECT_NEAR(
              loss.item<double>(),
              expected.item<double>(),
              numbers.loss_tolerance);
          EXPECT_TRUE(input.grad().allclose(
              plain_input.grad(), 0, numbers.gradient_tolerance));
          for (const auto& item : divided->named_parameters()) {
            EXPECT_TRUE(item.value().grad().allclose(
                own(full_tensors[item.key()].grad(), item.value()),
                0,
                numbers.gradient_tolerance))
                << item.key();
          }
        }
      }
    });
  }
}

} // namespace

TEST(LayerDropout, IsThatOfPlainLayers) {
  check_dropout(/*banded=*/false, kByOperators);
}

TEST(LayerDropout, IsThatOfPlainLayersByKernels) {
  check_dropout(/*banded=*/false, kByKernel);
}

TEST(LayerDropout, IsThatOfPlainLayersWithWindows) {
  check_dropout(/*banded=*/true, kByOperators);
}

} // namespace tessera::zoo::layer_dropout_test
