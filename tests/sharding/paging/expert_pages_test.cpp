// SPDX-License-Identifier: Apache-2.0
// Pages of parameters that other ranks have for other experts.

#include "support/expect_error.h"
#include "support/ranks.h"
#include "tessera/sharding/expert_parallel/divided_experts.h"
#include "tessera/sharding/paging/pager.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding::expert_pages_test {

namespace {

constexpr int kParts = 2;

PageMeshes meshes_of(const World& world) {
  PageMeshes meshes(shard_mesh(world.rank(), world.size(), 0));
  meshes.experts = expert_mesh(meshes.module, kParts);
  return meshes;
}

/// A layer that all ranks have, and an expert that every other rank has.
struct NetImpl : torch::nn::Module {
  /// @param value of all parameters.
  NetImpl(const std::string& expert, double value) {
    layer = register_module("layer", torch::nn::Linear(5, 7));
    experts = register_module("experts", std::make_shared<DividedExperts>());
    local = experts->register_module(expert, torch::nn::Linear(7, 3));
    const c10::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters()) {
      parameter.fill_(value);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return local->forward(layer->forward(x));
  }

  torch::nn::Linear layer = nullptr;
  std::shared_ptr<DividedExperts> experts;
  torch::nn::Linear local = nullptr;
};
TORCH_MODULE(Net);

PagerOptions options_of_pages() {
  PagerOptions options;
  options.groups.min_group_numel = 0;
  return options;
}

std::string name_of_expert(const World& world) {
  return "expert" + std::to_string(world.rank() % kParts);
}

} // namespace

// Values start from those of the first rank that has the expert, and gradients
// are averages over the ranks that have it.
TEST(ExpertPages, AreThoseOfTheRanksWithTheSameExpert) {
  tests::run_ranks(4, [](World& world) {
    const int rank = world.rank();
    Net net(name_of_expert(world), /*value=*/rank + 1);
    const PagerOptions options = options_of_pages();
    const PageMeshes meshes = meshes_of(world);
    const std::vector<PageSpec> pages = plan_pages(*net, options, meshes);
    ASSERT_EQ(pages.size(), 2);
    EXPECT_FALSE(pages[0].of_experts);
    EXPECT_EQ(pages[0].mesh, meshes.module);
    EXPECT_TRUE(pages[1].of_experts);
    EXPECT_EQ(pages[1].mesh, *meshes.experts);
    const SlotPlan slots(
        pages, std::vector<runtime::ShardTiers>(pages.size()), options);
    MemoryLedger ledger;
    Pager pager(
        std::make_unique<PageRanks>(world, meshes, pages),
        *net,
        {pages, slots, slots.budget()},
        options,
        ledger,
        {},
        nullptr);
    EXPECT_EQ(pager.ranks().meshes().size(), 2);
    net->forward(torch::full({1, 5}, rank + 1.0)).sum().backward();
    pager.settle_gradients();
    // The inputs of an expert are 5 * (rank + 1) + 1, of rank 0's layer.
    const auto gradient = [&](const at::Tensor& parameter) {
      return pager.scopes()
          .full_gradient(pager.pages().find(parameter))
          .max()
          .item<double>();
    };
    const int part = rank % kParts;
    EXPECT_EQ(gradient(net->local->weight), 5 * (part + 2) + 1);
    // Those of a layer are 3 times the expert's weight, 1 or 2.
    EXPECT_EQ(gradient(net->layer->bias), 4.5);
    // Rows of sums over the shards, of a page each.
    const at::Tensor sums = torch::full({2}, rank + 1.0, at::kDouble);
    pager.ranks().sum_over_shards(sums, {{&pages[0]}, {&pages[1]}});
    EXPECT_EQ(sums[0].item<double>(), 10);
    EXPECT_EQ(sums[1].item<double>(), part == 0 ? 1 + 3 : 2 + 4);
    pager.unwrap();
    EXPECT_EQ(net->layer->weight.max().item<double>(), 1);
    EXPECT_EQ(net->local->weight.max().item<double>(), part + 1);
  });
}

TEST(ExpertPages, HaveTheNamesOfTheSameExpert) {
  tests::run_ranks(4, [](World& world) {
    const Net net(world.rank() == 3 ? "other" : name_of_expert(world), 1);
    const PageMeshes meshes = meshes_of(world);
    const auto pages = plan_pages(*net, options_of_pages(), meshes);
    expect_error(
        [&] { PageRanks(world, meshes, pages); },
        {"the module on rank 3 differs from rank 1's"});
  });
}

} // namespace tessera::sharding::expert_pages_test
