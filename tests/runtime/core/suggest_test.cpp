// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera::runtime::suggest_test {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", "abc"), 0u);
  EXPECT_EQ(edit_distance("abc", "abx"), 1u);
  EXPECT_EQ(edit_distance("abc", "ab"), 1u);
  EXPECT_EQ(edit_distance("abc", "xabc"), 1u);
  EXPECT_EQ(edit_distance("abc", "acb"), 1u); // One swap.
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(NearestName, FindsTheNearestOrNothing) {
  const std::vector<std::string> names{
      "learning_rate", "warmup_steps", "weight_decay", "lr"};
  EXPECT_EQ(nearest_name("learning_rat", names), "learning_rate");
  EXPECT_EQ(nearest_name("weigth_decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("momentum", names), "");
  EXPECT_EQ(nearest_name("x", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(NearestName, FirstOfEqualsWins) {
  const std::vector<std::string> names{"layer.1", "layer.2"};
  EXPECT_EQ(nearest_name("layer.3", names), "layer.1");
}

} // namespace tessera::runtime::suggest_test
