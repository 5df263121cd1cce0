// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/name_patterns.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::runtime::name_patterns_test {

TEST(NamePattern, MatchesWholeNamesAndIsFoundInThem) {
  const NamePattern pattern("an option", "layer\\.\\d+");
  EXPECT_TRUE(pattern.matches("layer.12"));
  EXPECT_FALSE(pattern.matches("layer.12.bias"));
  EXPECT_TRUE(pattern.is_found_in("encoder.layer.12.bias"));
  EXPECT_FALSE(pattern.is_found_in("encoder.layers.bias"));
  const NamePattern copy = pattern;
  EXPECT_TRUE(copy.matches("layer.0"));
  // A view into something longer.
  EXPECT_TRUE(pattern.matches(std::string_view("layer.12.bias").substr(0, 8)));
}

TEST(NamePattern, NamesTheOptionAndTheExpressionThatIsMalformed) {
  expect_error(
      [] { NamePattern("an.option", "layer.(\\d"); },
      {"an.option", "'layer.(\\d'", "not a valid regular expression", "\\."});
}

TEST(NamePattern, TypesMatchFromAScopeOn) {
  const NamePattern type = NamePattern::of_type("Layer");
  EXPECT_TRUE(type.matches("some::LayerImpl"));
  EXPECT_TRUE(type.matches("Layer"));
  EXPECT_FALSE(type.matches("some::BigLayerImpl"));
}

TEST(NamePattern, AStarIsTextWithoutDots) {
  const NamePattern glob = NamePattern::of_glob("layers.*.query(a)*");
  EXPECT_TRUE(glob.matches("layers.12.query(a)"));
  EXPECT_TRUE(glob.matches("layers..query(a)_b"));
  EXPECT_FALSE(glob.matches("layers.1.x.query(a)"));
  EXPECT_FALSE(glob.matches("layers.1.query(a).b"));
  EXPECT_FALSE(glob.matches("layersX1.query(a)"));
  EXPECT_FALSE(glob.matches("layers.1.querya"));
  EXPECT_TRUE(NamePattern::of_glob("").matches(""));
  NamePatterns patterns("plan");
  patterns.add_glob("layer.*.query");
  EXPECT_EQ(patterns.first_match("layer.0.quary"), std::nullopt);
  expect_error(
      [&] { patterns.check_all_used(); },
      {"plan: 'layer.*.query' matches nothing", "'layer.0.quary'", "dots"});
}

TEST(NamePatterns, TheFirstMatchCountsAndEveryPatternHasToMatch) {
  NamePatterns patterns("an.option", {"a\\.\\d", "a.*", "layer\\.\\d+"});
  EXPECT_EQ(patterns.first_match("a.1"), 0);
  EXPECT_EQ(patterns.first_match("a.b"), 1);
  EXPECT_EQ(patterns.first_match("layers.0"), std::nullopt);
  EXPECT_FALSE(patterns.matches(2, "lay.0"));
  expect_error(
      [&] { patterns.check_all_used(); },
      {"an.option: 'layer\\.\\d+' matches nothing", "nearest", "'layers.0'"});
  EXPECT_TRUE(patterns.matches(2, "layer.7"));
  patterns.check_all_used();
  expect_error([&] { patterns.add(""); }, {"an.option", "is empty"});
  expect_error([&] { patterns.add_type(""); }, {"an.option", "is empty"});
}

} // namespace tessera::runtime::name_patterns_test
