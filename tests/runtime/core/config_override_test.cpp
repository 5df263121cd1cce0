// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/config_values.h"
#include "support/expect_error.h"
#include "tessera/runtime/core/config.h"

namespace tessera::runtime::config_override_test {

namespace {

std::string after(const char* before, std::string_view override_text) {
  auto root = nlohmann::json::parse(before);
  apply_override(root, override_text);
  return root.dump();
}

void refuse(
    const char* before,
    std::string_view override_text,
    std::initializer_list<const char*> parts) {
  SCOPED_TRACE(override_text);
  auto root = nlohmann::json::parse(before);
  expect_error([&] { apply_override(root, override_text); }, {"override '"});
  expect_error([&] { apply_override(root, override_text); }, parts);
  EXPECT_EQ(root, nlohmann::json::parse(before)); // Untouched.
}

} // namespace

TEST(ConfigOverride, SetsValues) {
  EXPECT_EQ(
      after(R"({"optimizer":{"lr":1}})", "optimizer.lr=1e-4"),
      R"({"optimizer":{"lr":0.0001}})");
  EXPECT_EQ(after("{}", "a.b.c=1"), R"({"a":{"b":{"c":1}}})");
  EXPECT_EQ(after(R"({"a":null})", "a.b=1"), R"({"a":{"b":1}})");
  EXPECT_EQ(after(R"({"a":{"b":1}})", "a=null"), R"({"a":null})");
  // An empty section, as "a=" makes it.
  EXPECT_EQ(after(R"({"a":""})", "a.b.c=1"), R"({"a":{"b":{"c":1}}})");
  EXPECT_EQ(after(R"({"a":[{"n":1},2]})", "a.0.n=5"), R"({"a":[{"n":5},2]})");
  EXPECT_EQ(after(R"({"a":[1,2]})", "a.1=5"), R"({"a":[1,5]})");
}

TEST(ConfigOverride, ValueIsJsonOrElseAString) {
  EXPECT_EQ(after("{}", "a=true"), R"({"a":true})");
  EXPECT_EQ(after("{}", "a=[1, {\"b\":2}]"), R"({"a":[1,{"b":2}]})");
  EXPECT_EQ(after("{}", "a=\"3\""), R"({"a":"3"})");
  EXPECT_EQ(after("{}", "a=runs/x=y.json"), R"({"a":"runs/x=y.json"})");
  EXPECT_EQ(after("{}", "a=[CLS] x"), R"({"a":"[CLS] x"})");
  EXPECT_EQ(after("{}", "a="), R"({"a":""})");
}

TEST(ConfigOverride, RefusesWhatItCannotApply) {
  refuse("{}", "lr", {"no '='", "key.path=value"});
  refuse("{}", "=1", {"'' is not a valid key"});
  refuse("{}", "a..b=1", {"'' is not a valid key"});
  refuse("{}", ".a=1", {"'' is not a valid key"});
  refuse("{}", "--lr x=1", {"'--lr x' is not a valid key"});
  refuse(R"({"a":{"b":3}})", "a.b.c=1", {"a.b is 3", "'c'", "shorten"});
  refuse(R"({"a":"x"})", "a.b=1", {"a is \"x\"", "'b'", "shorten"});
  refuse(R"({"a":[1]})", "a.1=5", {"'1'", "a, which has 1 elements"});
  refuse(R"({"a":[1]})", "a.-1=5", {"'-1'"});
  refuse(R"({"a":[1]})", "a.99999999999999999999=5", {"not an index"});
  refuse("{}", "a={\"b\":1,\"b\":2}", {"\"b\"", "twice"});
  refuse("{}", "a=\xff", {"UTF-8"});
}

TEST(ConfigOverride, ErrorsNameTheOverrideAndNotTheFile) {
  const auto read = [](const std::vector<std::string>& overrides) {
    return ConfigReader(
        nlohmann::json::parse(R"({"optimizer":{"lr":1,"eps":"x"}})"),
        "c.json",
        overrides);
  };
  const std::vector<std::string> wrong{"optimizer.lr=abc"};
  const auto value = read(wrong);
  expect_error(
      [&] { tests::config_value<double>(value.get_object("optimizer"), "lr"); },
      {"override 'optimizer.lr=abc': optimizer.lr is the string \"abc\""});
  // What the file says stays the file's.
  expect_error(
      [&] {
        tests::config_value<double>(value.get_object("optimizer"), "eps");
      },
      {"c.json: optimizer.eps"});
  // The last one counts, and one of a whole object covers what was in it.
  expect_error(
      [&] {
        tests::config_value<double>(
            read({"optimizer.lr=2", "optimizer={\"lr\":\"d\"}"})
                .get_object("optimizer"),
            "lr");
      },
      {"override 'optimizer={\"lr\":\"d\"}': optimizer.lr"});
  expect_error(
      [&] {
        const auto config = read({"optimzer.lr=2"});
        config.get_object("optimizer");
        config.finish();
      },
      {"override 'optimzer.lr=2': optimzer is not a known key"});
  expect_error([&] { read({"optimizer.lr"}); }, {"no '='"});
}

} // namespace tessera::runtime::config_override_test
