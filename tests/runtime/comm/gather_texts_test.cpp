// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/gather_texts.h"

#include "support/ranks.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace tessera::runtime::gather_texts_test {

namespace {

/// What each of 7 ranks finds is the same.
void expect_differences(
    const std::function<std::string(int)>& value_of_rank,
    const std::string& expected) {
  tests::run_ranks(7, [&](World& world) {
    const auto all =
        world.new_communicator("all", at::kCPU, {0, 1, 2, 3, 4, 5, 6});
    const std::string value = value_of_rank(world.rank());
    EXPECT_EQ(
        find_differences(
            *all,
            value,
            "has '" + value + "' on " + std::to_string(world.rank()),
            "a comparison"),
        expected);
  });
}

} // namespace

TEST(FindDifferences, NothingWhereAllValuesAreEqual) {
  expect_differences([](int) { return "12 a"; }, "");
  expect_differences([](int) { return ""; }, "");
}

TEST(FindDifferences, RanksWithTheSameValueShareALine) {
  expect_differences(
      [](int rank) { return rank == 2 ? "x" : ""; },
      "\n  ranks 0, 1, 3, 4, ...: has '' on 0\n  rank 2: has 'x' on 2");
  expect_differences(
      [](int rank) { return std::string(rank % 2 + 1, 'a'); },
      "\n  ranks 0, 2, 4, 6: has 'a' on 0\n  ranks 1, 3, 5: has 'aa' on 1");
  expect_differences(
      [](int rank) { return std::to_string(rank); },
      "\n  rank 0: has '0' on 0\n  rank 1: has '1' on 1\n  rank 2: has '2' on 2\n  rank 3: has '3' on 3\n  ...");
}

} // namespace tessera::runtime::gather_texts_test
