// SPDX-License-Identifier: Apache-2.0
// Collectives of the virtual device: ordered by streams, without the host.
#include "support/vdev/vdev_process_group.h"
#include "runtime/comm/device_collectives.h"
#include "support/vdev/vdev.h"
#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/ring_channels.h"

#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace tessera::tests::vdev::vdev_process_group_test {

namespace {

using Order = Policy::Order;

int64_t synchronizations() {
  return Runtime::instance().counters().synchronizations;
}

/// Runs `body` on two ranks, each of which must note the violation.
void expect_violation_on_ranks(
    const std::string& text,
    const std::function<void(World&)>& body) {
  install();
  run_ranks(2, [&](World& world) {
    Runtime::instance().set_policy({Order::kLazy});
    try {
      body(world);
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos)
          << error.what();
    }
    const auto violations = Runtime::instance().violations();
    // Others may follow while what was made is freed.
    ASSERT_FALSE(violations.empty());
    EXPECT_NE(violations[0].find(text), std::string::npos) << violations[0];
  });
}

} // namespace

class Orders : public ::testing::TestWithParam<Policy> {};

TEST_P(Orders, EveryCollectiveGivesWhatItGivesOnTheCpu) {
  run_ranks_on_vdev(3, GetParam(), [](World& world) {
    const auto run = [&](at::Device on) {
      const auto group = world.new_communicator("all", on);
      torch::manual_seed(world.rank());
      std::vector<at::Tensor> results;
      const at::Tensor local = torch::randn({12}).to(on);
      results.push_back(torch::empty({36}).to(on));
      auto gathered = group->all_gather(results.back(), local, "gather");
      gathered.wait();
      const at::Tensor full = torch::randn({12}).to(on);
      results.push_back(torch::empty({4}).to(on));
      group->reduce_scatter_sum(results.back(), full, "scatter").wait();
      results.push_back(local.clone());
      group->all_reduce_sum(results.back(), "sum").wait();
      results.push_back(local.clone());
      group->broadcast(results.back(), 1, "broadcast").wait();
      results.push_back(torch::empty({12}).to(on));
      group->all_to_all(results.back(), local, "exchange").wait();
      std::vector<at::Tensor> on_cpu;
      for (const at::Tensor& result : results) {
        on_cpu.push_back(result.cpu());
      }
      group->barrier();
      return on_cpu;
    };
    const auto expected = run(at::kCPU);
    const auto got = run(world.device());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
    }
  });
}

TEST_P(Orders, ThoseOfTheGpuTests) {
  for (const int ranks : {2, 4}) {
    run_ranks_on_vdev(ranks, GetParam(), [](World& world) {
      const auto group = world.new_communicator("all", world.device());
      check_collectives(*group, world.device());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Orders,
    ::testing::ValuesIn(policies(
        {{Order::kEager},
         {Order::kLazy},
         {Order::kRandom, 1},
         {Order::kStarve, 0, 0}})),
    [](const auto& which) { return which.param.name(); });

TEST(Streams, CollectivesDoNotBlockTheHost) {
  run_ranks_on_vdev(2, {Order::kLazy}, [](World& world) {
    const auto group = world.new_communicator("all", world.device());
    const at::Tensor local =
        torch::full({4}, world.rank() + 1.0F, world.device());
    const at::Tensor sum = local.clone();
    const int64_t before = synchronizations();
    group->all_reduce_sum(sum, "sum").wait();
    const at::Tensor twice = sum * 2;
    EXPECT_EQ(synchronizations(), before);
    EXPECT_EQ(twice[0].item<float>(), 6.0F);
  });
}

TEST(Streams, AGatherThatDoesNotWaitForItsInputIsFound) {
  expect_violation_on_ranks(
      " reads memory that aten::fill_.Scalar on stream 0", [](World& world) {
        const auto group = world.new_communicator("all", world.device());
        const at::Tensor local = torch::empty({4}, world.device()).fill_(1);
        const at::Tensor all = torch::empty({8}, world.device());
        const c10::StreamGuard guard(
            new_stream(world.device(), /*is_lane=*/true));
        group->all_gather(all, local, "gather");
      });
}

TEST(Groups, OneThatIsAbortedWithWorkInFlightLeavesNan) {
  expect_violation_on_ranks("in flight", [](World& world) {
    const at::Tensor sum = torch::ones({4}, world.device());
    const auto group = world.new_communicator("all", world.device());
    group->all_reduce_sum(sum, "sum");
    group->abort();
    EXPECT_TRUE(sum.isnan().all().item<bool>());
  });
}

// Of a ring, in which every rank sends before it receives.
constexpr int kRing = 3;

TEST(Connections, ACircleOfFirstSendsEndsAtTheTimeLimit) {
  install();
  run_ranks(kRing, [](World& world) {
    const int next = (world.rank() + 1) % kRing;
    const auto store = c10::make_intrusive<c10d::PrefixStore>(
        std::to_string(world.rank()) + "-" + std::to_string(next),
        world.store());
    const std::chrono::seconds limit(1);
    store->setTimeout(limit);
    ProcessGroup pair(store, /*rank=*/0, /*size=*/2, /*index=*/0, limit);
    c10d::BroadcastOptions options;
    options.rootRank = 0;
    options.asyncOp = false;
    std::vector<at::Tensor> sent{torch::ones({4}, device())};
    EXPECT_THROW(pair.broadcast(sent, options), std::exception);
  });
}

TEST(Connections, ChannelsAreConnectedBeforeTheFirstSend) {
  run_ranks_on_vdev(
      kRing,
      {Order::kLazy},
      [](World& world) {
        const int before = (world.rank() + kRing - 1) % kRing;
        runtime::RingChannels ring(world, "ring", {0, 1, 2}, world.device());
        const at::Tensor local = torch::full({4}, world.rank(), world.device());
        const at::Tensor got = torch::empty_like(local);
        auto sent = ring.send(local, (world.rank() + 1) % kRing, "first send");
        ring.receive(got, before, "first receive").wait();
        sent.wait();
        EXPECT_EQ(got[0].item<int64_t>(), before);
      },
      {.collective_timeout = std::chrono::seconds(5)});
}

} // namespace tessera::tests::vdev::vdev_process_group_test
