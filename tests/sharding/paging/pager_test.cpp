// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/pager.h"

#include "support/average_over_ranks.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::sharding::pager_test {

namespace {

torch::nn::Sequential make_mlp() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(17, 33),
      torch::nn::Tanh(),
      torch::nn::Linear(33, 29),
      torch::nn::Tanh(),
      torch::nn::Linear(29, 5));
}

PagerOptions one_group_per_layer() {
  PagerOptions options;
  options.groups.min_group_numel = 0;
  return options;
}

using Gradients = std::map<std::string, std::vector<at::Tensor>>;

/// Runs backward of `plain` with every rank's batch, and of `model` with this
/// rank's. @return gradients of `plain` by rank.
Gradients backward_of_all_ranks(
    const World& world,
    torch::nn::Sequential& plain,
    torch::nn::Sequential& model,
    int step) {
  Gradients gradients;
  for (int rank = 0; rank < world.size(); ++rank) {
    torch::manual_seed(100 * step + rank);
    const auto x = torch::randn({7, 17});
    plain->zero_grad();
    const auto expected = plain->forward(x).square().mean();
    expected.backward();
    for (const auto& item : plain->named_parameters()) {
      gradients[item.key()].push_back(item.value().grad().clone());
    }
    if (rank == world.rank()) {
      const auto loss = model->forward(x).square().mean();
      EXPECT_EQ(expected.item<float>(), loss.item<float>());
      loss.backward();
    }
  }
  return gradients;
}

} // namespace

class PagerTest : public ::testing::TestWithParam<int> {};

TEST_P(PagerTest, GradientsOfAnMlpEqualThePlainRun) {
  tests::run_ranks(GetParam(), [](World& world) {
    auto plain = make_mlp();
    auto model = make_mlp();
    MemoryLedger ledger;
    Pager pager(world, *model, one_group_per_layer(), ledger);
    EXPECT_EQ(pager.pages().size(), 3);
    for (int step = 0; step < 3; ++step) {
      const auto gradients = backward_of_all_ranks(world, plain, model, step);
      pager.settle_gradients();
      for (const auto& item : plain->named_parameters()) {
        const size_t index = pager.pages().find(item.key());
        const auto& page = pager.pages().entries()[index].page;
        const auto flat = torch::zeros({page.layout().padded_numel()});
        const auto& span = pager.pages().parameter(index).span;
        flat.narrow(0, span.begin, span.numel)
            .copy_(tests::average_over_ranks(gradients.at(item.key()))
                       .reshape({-1}));
        const auto self_value = page.layout().shard(world.rank());
        for (const auto& run :
             runtime::segments_of_shard({&span, 1}, self_value)) {
          const auto got = page.gradients->shard().load().narrow(
              0, run.shard_offset, run.numel);
          const auto want =
              flat.narrow(0, self_value.begin + run.shard_offset, run.numel);
          EXPECT_TRUE(torch::equal(got, want))
              << item.key() << (got - want).abs().max();
        }
      }
      pager.begin_next_step();
    }
    if (world.size() > 1) {
      // Three groups of which two fit; the first layer is not needed in
      // backward. The first step finds out on demand, later ones follow the
      // plan.
      EXPECT_EQ(pager.statistics().on_demand_unshards, 3);
      EXPECT_EQ(pager.statistics().reductions, 9);
    }
  });
}

/// The pages of a module whose second page is sharded over neighbors, with a
/// copy of its shards on every other pair of ranks.
PagingPlan plan_with_two_meshes(
    const World& world,
    const torch::nn::Module& module,
    const PagerOptions& options) {
  const auto pages_over = [&](int shard_ranks) {
    return plan_pages(
        module, options, shard_mesh(world.rank(), world.size(), shard_ranks));
  };
  std::vector<PageSpec> pages = pages_over(0);
  pages[1] = pages_over(2)[1];
  const SlotPlan slots(
      pages, std::vector<runtime::ShardTiers>(pages.size()), options);
  return {pages, slots, slots.budget()};
}

TEST(PagesOfTwoMeshes, HaveTheGradientsOfAPlainRun) {
  tests::run_ranks(4, [](World& world) {
    auto plain = make_mlp();
    auto model = make_mlp();
    if (world.rank() == 3) {
      const c10::NoGradGuard no_grad;
      for (at::Tensor& parameter : model->parameters()) {
        parameter.zero_(); // rank 0's are broadcast, over each page's mesh
      }
    }
    MemoryLedger ledger;
    const PagerOptions options = one_group_per_layer();
    const PagingPlan plan = plan_with_two_meshes(world, *model, options);
    Pager pager(
        std::make_unique<PageRanks>(world, plan.pages.front().mesh, plan.pages),
        *model,
        plan,
        options,
        ledger,
        {},
        nullptr);
    const auto shards_of = [&](size_t g) {
      const runtime::FlatLayout& layout = pager.pages()[g].layout();
      return layout.padded_numel() / layout.shard_numel();
    };
    EXPECT_EQ(shards_of(0), 4);
    EXPECT_EQ(shards_of(1), 2);
    for (int step = 0; step < 3; ++step) {
      const auto gradients = backward_of_all_ranks(world, plain, model, step);
      pager.settle_gradients();
      for (const auto& [name, of_ranks] : gradients) {
        const at::Tensor want = tests::average_over_ranks(of_ranks);
        const at::Tensor got =
            pager.scopes().full_gradient(pager.pages().find(name));
        // The sums are added up in another order.
        EXPECT_TRUE(torch::allclose(got, want, 1e-5, 1e-8)) << name;
        EXPECT_FALSE(torch::allclose(
            got, of_ranks[static_cast<size_t>(world.rank())], 1e-3))
            << name;
      }
      pager.begin_next_step();
    }
    pager.unwrap();
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(
          torch::equal(model->named_parameters()[item.key()], item.value()))
          << item.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, PagerTest, ::testing::Range(1, 5));

} // namespace tessera::sharding::pager_test
