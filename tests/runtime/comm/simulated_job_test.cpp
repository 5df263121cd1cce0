// SPDX-License-Identifier: Apache-2.0
// A rank of a job whose other ranks do not exist.
#include "tessera/runtime/comm/simulated_job.h"

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/core/error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <thread>
#include <vector>

namespace tessera::runtime::simulated_job_test {

TEST(SimulatedJob, CollectivesAreThoseOfEqualRanks) {
  const auto job = std::make_shared<SimulatedJob>(std::vector<int>{2});
  World world(2, 4, {.use_cuda = false}, job);
  const auto all = world.new_communicator("all");
  EXPECT_EQ(all->rank(), 2);
  EXPECT_EQ(all->size(), 4);

  const at::Tensor gathered = torch::zeros({8});
  all->all_gather(gathered, torch::tensor({1.0F, 2.0F}), "a gather").wait();
  EXPECT_TRUE(gathered.equal(torch::tensor({1.0F, 2.0F}).repeat({4})));

  const at::Tensor part = torch::zeros({2});
  all->reduce_scatter_sum(part, torch::arange(8, torch::kFloat), "a sum")
      .wait();
  EXPECT_TRUE(part.equal(torch::tensor({16.0F, 20.0F})));

  const at::Tensor sum = torch::ones({3});
  all->all_reduce_sum(sum, "a sum").wait();
  EXPECT_TRUE(sum.equal(torch::full({3}, 4.0F)));
  all->all_reduce_max(sum, "a maximum").wait();
  EXPECT_TRUE(sum.equal(torch::full({3}, 4.0F)));

  const auto work = job->work(2);
  ASSERT_EQ(work.size(), 3);
  EXPECT_EQ(work[0].kind, "all_gather");
  EXPECT_EQ(work[0].bytes, 32);
  EXPECT_EQ(work[1].kind, "all_reduce");
  EXPECT_EQ(work[1].calls, 2);
  EXPECT_EQ(work[2].kind, "reduce_scatter");
  EXPECT_EQ(work[2].bytes, 32);
  job->forget_work(2);
  EXPECT_TRUE(job->work(2).empty());
}

TEST(SimulatedJob, RanksOfTheProcessGetSmallBroadcasts) {
  const auto job = std::make_shared<SimulatedJob>(std::vector<int>{0, 3});
  const auto run = [&](int rank) {
    World world(rank, 4, {.use_cuda = false}, job);
    const auto pair = world.new_communicator("pair", at::kCPU, {0, 3});
    const at::Tensor numbers =
        rank == 0 ? torch::arange(5) : torch::zeros({5}, torch::kLong);
    pair->broadcast(numbers, 0, "numbers").wait();
    EXPECT_TRUE(numbers.equal(torch::arange(5))) << rank;
  };
  std::thread other([&] { run(3); });
  run(0);
  other.join();
}

/// Rank 1 stands in for rank 2 between the pipeline's neighbors 1 and 3.
TEST(SimulatedJob, AStageStandsInForThoseAfterIt) {
  const auto job = std::make_shared<SimulatedJob>(
      std::vector<int>{0, 1, 3},
      std::nullopt,
      std::chrono::seconds(20),
      std::map<int, int>{{2, 1}});
  EXPECT_EQ(job->partner(0, 1), 1);
  EXPECT_EQ(job->partner(1, 2), 3);
  EXPECT_EQ(job->partner(3, 2), 1);
  EXPECT_EQ(job->partner(3, 4), std::nullopt);
  const auto run = [&](int rank) {
    World world(rank, 4, {.use_cuda = false}, job);
    const int neighbor = 2;
    const auto pair = world.new_communicator(
        "ring",
        at::kCPU,
        rank < neighbor ? std::vector<int>{rank, neighbor}
                        : std::vector<int>{neighbor, rank});
    const int self = pair->rank();
    const at::Tensor sent = torch::full({3}, rank, torch::kLong);
    pair->broadcast(sent, self, "there").wait();
    const at::Tensor received = torch::zeros({3}, torch::kLong);
    pair->broadcast(received, 1 - self, "back").wait();
    EXPECT_TRUE(received.equal(torch::full({3}, 4 - rank, torch::kLong)));
    // A group of more ranks is none of neighbors.
    const auto all = world.new_communicator("all");
    all->broadcast(received, neighbor, "none").wait();
  };
  std::thread other([&] { run(3); });
  run(1);
  other.join();
}

/// Activations of a pipeline stage that only plans, or is in another process.
TEST(SimulatedJob, LargeBroadcastsOfOtherRanksAreZeros) {
  const auto job = std::make_shared<SimulatedJob>(std::vector<int>{0, 3});
  World world(0, 4, {.use_cuda = false}, job);
  const auto pair = world.new_communicator("pair", at::kCPU, {0, 3});
  const at::Tensor activations = torch::full({1 << 15}, NAN);
  pair->broadcast(activations, 1, "activations").wait();
  EXPECT_TRUE(activations.equal(torch::zeros({1 << 15})));
  // What a rank has that is nowhere stays: weights, which are the same there.
  const auto others = world.new_communicator("others", at::kCPU, {0, 1});
  const at::Tensor weights = torch::ones({1 << 15});
  others->broadcast(weights, 1, "weights").wait();
  EXPECT_TRUE(weights.equal(torch::ones({1 << 15})));
  EXPECT_GT(job->seconds(0), 0);
  EXPECT_EQ(job->seconds(3), 0);
}

TEST(SimulatedJob, NobodyWaitsForARankThatFailed) {
  SimulatedJob job({0, 1});
  std::thread other([&] { job.end("rank 1 has failed"); });
  EXPECT_THROW(job.take("a message"), Error);
  other.join();
}

} // namespace tessera::runtime::simulated_job_test
