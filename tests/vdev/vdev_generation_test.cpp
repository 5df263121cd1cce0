// SPDX-License-Identifier: Apache-2.0
// Texts that models on the virtual device go on with.
#include "support/vdev/vdev.h"
#include "zoo/device_generation.h"

namespace tessera::tests::vdev::vdev_generation_test {

namespace {

using Order = Policy::Order;

class Generation : public ::testing::TestWithParam<Policy> {};

} // namespace

TEST_P(Generation, WritesTheTextsOfTheCpu) {
  run_ranks_on_vdev(
      2, GetParam(), zoo::device_generation::expect_texts_of_the_cpu);
}

TEST_P(Generation, WritesTheTextsOfNoCache) {
  run_ranks_on_vdev(
      1, GetParam(), zoo::device_generation::expect_texts_of_no_cache);
}

TEST_P(Generation, HasTheLogitsOfNoCache) {
  run_ranks_on_vdev(
      1, GetParam(), zoo::device_generation::expect_logits_of_no_cache);
}

INSTANTIATE_TEST_SUITE_P(
    AllOrders,
    Generation,
    ::testing::ValuesIn(policies({{Order::kLazy}, {Order::kRandom, 1}})),
    [](const auto& which) { return which.param.name(); });

} // namespace tessera::tests::vdev::vdev_generation_test
