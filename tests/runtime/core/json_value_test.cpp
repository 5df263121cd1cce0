// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/json_value.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>

namespace tessera::runtime::json_value_test {

TEST(JsonValue, ReadsTypedValuesAndNamesThePlaceOfOthers) {
  const auto json = nlohmann::json::parse(
      R"({"a": {"b": [1, -2]}, "t": ["x"], "f": 0.5, "y": true})");
  const JsonValue root(json, "m.json", "; load another one");
  EXPECT_EQ(root.at("f").as<double>(), 0.5);
  EXPECT_TRUE(root.at("y").as<bool>());
  EXPECT_EQ(root.at("t").texts(), std::vector<std::string>{"x"});
  EXPECT_EQ(root.keys(), (std::vector<std::string>{"a", "f", "t", "y"}));
  EXPECT_FALSE(root.find("z"));
  const JsonValue list = root.at("a").at("b");
  EXPECT_EQ(list.elements()[1].as<int64_t>(), -2);
  EXPECT_EQ(list.integers({}), (std::vector<int64_t>{1, -2}));
  expect_error(
      [&] { list.integers(); },
      {"m.json: 'a': 'b'[1] is -2, but must be an integer of at least 0; load another one"});
  expect_error(
      [&] { list.elements()[0].integer({.min = 2, .max = 3}); },
      {"'b'[0] is 1, but must be an integer from 2 to 3"});
  expect_error([&] { root.at("f").as<int64_t>(); }, {"'f' is 0.5", "integer"});
  expect_error([&] { root.at("z"); }, {"an object with 'z'"});
  expect_error([&] { list.at("z"); }, {"'b' is [1,-2]", "with 'z'"});
  expect_error([&] { root.elements(); }, {"m.json is {", "a list"});
  expect_error([&] { list.keys(); }, {"an object"});
}

TEST(JsonValue, NullIsAsGoodAsAbsentWhereItIsSaid) {
  const nlohmann::json file{{"a", nullptr}, {"b", 2}};
  const JsonValue value(file, "file");
  EXPECT_TRUE(value.find("a").has_value());
  EXPECT_FALSE(value.find_set("a").has_value());
  EXPECT_EQ(value.get_or("a", int64_t{1}), 1);
  EXPECT_EQ(value.get_or("b", int64_t{1}), 2);
  expect_error([&] { value.value_or("a", int64_t{1}); }, {"file: 'a' is null"});
  EXPECT_EQ(value.value_or("b", int64_t{1}), 2);
  EXPECT_EQ(value.value_or("c", int64_t{1}), 1);
  expect_error([&] { value.value_or("b", false); }, {"file: 'b' is 2"});
}

} // namespace tessera::runtime::json_value_test
