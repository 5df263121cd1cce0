// SPDX-License-Identifier: Apache-2.0
// Modules that change their device. The device here is "meta": it has shapes
// and no numbers; those are move_module_gpu_test's.
#include "tessera/sharding/move_module.h"

#include "tessera/sharding/lazy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera {

namespace {

/// A large and a small weight, a tied one, two views of one memory, a buffer.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : embedding(400, 32),
        norm(torch::nn::LayerNormOptions({32})),
        head(torch::nn::LinearOptions(32, 400).bias(false)) {
    register_module("embedding", embedding);
    register_module("norm", norm);
    register_module("head", head);
    head->weight = embedding->weight;
    const auto both = torch::ones({8});
    upper = register_parameter("upper", both.narrow(0, 4, 4));
    lower = register_parameter("lower", both.narrow(0, 0, 4));
    steps = register_buffer("steps", torch::zeros({3}, torch::kLong));
  }

  torch::nn::Embedding embedding;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  torch::Tensor upper;
  torch::Tensor lower;
  torch::Tensor steps;
};
TORCH_MODULE(Net);

} // namespace

TEST(MoveModule, KeepsWhatIsLazyLazyAndWhatIsSharedShared) {
  auto net = lazy([] { return Net(); });
  ASSERT_TRUE(is_deferred(net->embedding->weight));
  ASSERT_FALSE(is_deferred(net->norm->weight)); // small: made at once
  const auto* identity = net->embedding->weight.unsafeGetTensorImpl();

  move_module(*net, at::kMeta);
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_TRUE(item.value().is_leaf()) << item.key();
  }
  EXPECT_TRUE(net->steps.is_meta());
  EXPECT_EQ(net->steps.scalar_type(), torch::kLong);
  EXPECT_TRUE(is_deferred(net->embedding->weight));
  EXPECT_FALSE(is_deferred(net->norm->weight));
  EXPECT_EQ(net->embedding->weight.sizes(), torch::IntArrayRef({400, 32}));
  // The tensor is the same, and so whoever holds it sees the move.
  EXPECT_EQ(net->embedding->weight.unsafeGetTensorImpl(), identity);
  EXPECT_EQ(net->head->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(net->upper.is_alias_of(net->lower));
  EXPECT_EQ(net->upper.storage_offset(), 4);
}

TEST(MoveModule, LeavesAModuleThatIsThereAsItIs) {
  Net net;
  const auto* memory = net->norm->weight.const_data_ptr();
  net->norm->weight.mutable_grad() = torch::ones({32});
  move_module(*net, at::kCPU);
  EXPECT_EQ(net->norm->weight.const_data_ptr(), memory);
  EXPECT_TRUE(net->norm->weight.grad().defined());
}

} // namespace tessera
