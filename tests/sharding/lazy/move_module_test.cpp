// SPDX-License-Identifier: Apache-2.0
// Modules that change their device. Without memory they can be moved to a
// device that is not there; numbers are move_module_gpu_test's.
#include "tessera/sharding/lazy/move_module.h"

#include "support/null_device.h"
#include "support/ranks.h"
#include "tessera/sharding/lazy/lazy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace tessera::sharding::move_module_test {

namespace {

/// A weight, a tied one and views of one memory.
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
  }

  torch::nn::Embedding embedding;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
  torch::Tensor upper;
  torch::Tensor lower;
};
TORCH_MODULE(Net);

} // namespace

TEST(MoveModule, ADeviceWithoutAnIndexIsTheCurrentOne) {
  tests::run_ranks(1, [](World&) {
    const at::Device current(at::kCUDA, 1);
    tests::NullDevice guard(current);
    const c10::impl::DeviceGuardImplRegistrar registered(at::kCUDA, &guard);
    auto net = lazy([] { return Net(); }, {.seed = 5, .min_numel = 0});
    move_module(*net, at::kCUDA);
    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(item.value().device(), current) << item.key();
      EXPECT_EQ(item.value().storage().device(), current) << item.key();
    }
  });
}

TEST(MoveModule, KeepsWhatIsLazyLazyAndWhatIsSharedShared) {
  const LazyOptions options{.seed = 5, .min_numel = 0};
  auto net = lazy([] { return Net(); }, options);
  auto stayed = lazy([] { return Net(); }, options);
  const auto* identity = net->embedding->weight.unsafeGetTensorImpl();
  const at::Device device(at::kCUDA, 1);

  move_module(*net, device);
  for (const auto& item : net->named_parameters()) {
    EXPECT_EQ(item.value().device(), device) << item.key();
    EXPECT_TRUE(is_deferred(item.value())) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_TRUE(item.value().is_leaf()) << item.key();
  }
  EXPECT_EQ(net->embedding->weight.sizes(), torch::IntArrayRef({400, 32}));
  // The tensor is the same, and so whoever holds it sees the move.
  EXPECT_EQ(net->embedding->weight.unsafeGetTensorImpl(), identity);
  EXPECT_EQ(net->head->weight.unsafeGetTensorImpl(), identity);
  EXPECT_TRUE(net->upper.is_alias_of(net->lower));
  EXPECT_EQ(net->upper.storage_offset(), 4);

  // And back: the numbers are those of a module that never left.
  move_module(*net, at::kCPU);
  materialize(*net);
  materialize(*stayed);
  for (const auto& item : stayed->named_parameters()) {
    EXPECT_TRUE(net->named_parameters()[item.key()].equal(item.value()))
        << item.key();
  }
}

TEST(MoveModule, LeavesAModuleThatIsThereAsItIs) {
  Net net;
  const auto* memory = net->norm->weight.const_data_ptr();
  net->norm->weight.mutable_grad() = torch::ones({32});
  move_module(*net, at::kCPU);
  EXPECT_EQ(net->norm->weight.const_data_ptr(), memory);
  EXPECT_TRUE(net->norm->weight.grad().defined());
}

} // namespace tessera::sharding::move_module_test
