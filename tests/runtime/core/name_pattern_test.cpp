// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/name_pattern.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::runtime::name_pattern_test {

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

} // namespace tessera::runtime::name_pattern_test
