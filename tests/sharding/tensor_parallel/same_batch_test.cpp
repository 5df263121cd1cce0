// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/same_batch.h"
#include "support/expect_error.h"
#include "support/ranks.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace tessera::sharding::same_batch_test {

namespace {

std::vector<at::Tensor> batch_of(int64_t value) {
  return {
      torch::full({2, 3}, value, at::kLong), torch::ones({2, 3}, at::kBool)};
}

} // namespace

TEST(SameBatch, NamesTheRanksThatDiffer) {
  tests::run_ranks(4, [](World& world) {
    auto group = world.new_communicator("one batch");
    check_same_batch(batch_of(5), *group);
    expect_error(
        [&] { check_same_batch(batch_of(world.rank() % 2), *group); },
        {"'one batch'", "different batches", "rank 0 are 1, 3."});
    // The same bytes in another shape or type are another batch.
    const at::Tensor zeros = torch::zeros({6}, at::kInt);
    expect_error(
        [&] {
          check_same_batch(
              {world.rank() == 2 ? zeros.view({2, 3}) : zeros}, *group);
        },
        {"rank 0 are 2."});
    expect_error(
        [&] {
          check_same_batch(
              {world.rank() == 3 ? zeros.view(at::kFloat) : zeros}, *group);
        },
        {"rank 0 are 3."});
  });
}

TEST(SameBatch, IsBroadcast) {
  tests::run_ranks(3, [](World& world) {
    auto group = world.new_communicator("one batch");
    const auto batch = batch_of(world.rank() + 7);
    batch[1].fill_(world.rank() == 0);
    broadcast_batch(batch, *group);
    check_same_batch(batch, *group);
    EXPECT_TRUE(batch[0].equal(batch_of(7)[0]));
    EXPECT_TRUE(batch[1].all().item<bool>());
    expect_error([&] { broadcast_batch({batch[0].t()}, *group); }, {"[3, 2]"});
  });
}

TEST(SameBatch, OneRankAlwaysAgrees) {
  Communicator alone("alone");
  check_same_batch(batch_of(1), alone);
  broadcast_batch(batch_of(1), alone);
}

} // namespace tessera::sharding::same_batch_test
