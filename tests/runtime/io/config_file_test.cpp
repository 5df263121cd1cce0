// SPDX-License-Identifier: Apache-2.0
// Configurations that extend each other.
#include "tessera/runtime/io/config_file.h"
#include "tessera/runtime/io/remove_tree.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/config_values.h"
#include "support/expect_error.h"

namespace tessera::runtime::config_file_test {

using tests::config_value;
using Strings = std::vector<std::string>;

namespace {

class ConfigFiles : public testing::Test {
 protected:
  ConfigFiles() {
    std::filesystem::create_directories(folder_ / "sub");
  }
  ~ConfigFiles() override {
    runtime::remove_tree(folder_);
  }

  std::string write(const std::string& name, const std::string& text) {
    const auto path = folder_ / name;
    std::ofstream(path) << text;
    return path.string();
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() /
      ("config_file_test_" + std::to_string(getpid()));
};

} // namespace

TEST_F(ConfigFiles, ObjectsMergeAndOtherValuesReplace) {
  write("base.json", R"({
    "optimizer": {"lr": 1, "betas": [0.5, 0.5], "type": "adam"},
    "names": ["a", "b"], "text": "base", "gone": 3})");
  const std::string file = write("sub/top.json", R"({
    "$schema": "x.json", "extends": "../base.json",
    "optimizer": {"lr": 2}, "names": ["c"], "gone": null})");
  const std::vector<std::string> overrides{"optimizer.type=sgd"};
  const ConfigReader config = read_config_file(file, overrides);
  const ConfigReader optimizer = config.get_object("optimizer");
  using Numbers = std::vector<double>;
  EXPECT_EQ(config_value<double>(optimizer, "lr"), 2);
  EXPECT_EQ(config_value<Numbers>(optimizer, "betas"), (Numbers{0.5, 0.5}));
  EXPECT_EQ(config_value<std::string>(optimizer, "type"), "sgd");
  EXPECT_EQ(config_value<Strings>(config, "names"), Strings{"c"});
  EXPECT_EQ(config_value<std::string>(config, "text"), "base");
  EXPECT_FALSE(config.contains("gone"));
  EXPECT_NO_THROW(config.finish());
  EXPECT_FALSE(config.resolved().contains("extends"));
}

TEST_F(ConfigFiles, NullRemovesAKeyOfTheFileBelow) {
  write("base.json", R"({"optimizer": {"type": "sgd", "momentum": 0.9}})");
  const ConfigReader config = read_config_file(
      write("top.json", R"({
        "extends": "base.json",
        "optimizer": {"type": "adamw", "momentum": null}})"),
      {});
  EXPECT_EQ(
      config_value<std::string>(config.get_object("optimizer"), "type"),
      "adamw");
  EXPECT_NO_THROW(config.finish());
  EXPECT_NO_THROW(
      read_config_file(write("alone.json", R"({"extends": null})"), {})
          .finish());
}

TEST_F(ConfigFiles, ErrorsNameTheFileOfEachKeyOfAnObject) {
  const std::string low =
      write("low.json", R"({"optimizer": {"lr": 1, "type": 3}})");
  write("middle.json", R"({"extends": "low.json"})");
  const std::string top = write(
      "top.json", R"({"extends": "middle.json", "optimizer": {"lr": "x"}})");
  const ConfigReader optimizer =
      read_config_file(top, {}).get_object("optimizer");
  expect_error([&] { config_value<double>(optimizer, "lr"); }, {top.c_str()});
  expect_error(
      [&] { config_value<std::string>(optimizer, "type"); }, {low.c_str()});
}

TEST_F(ConfigFiles, ErrorsNameTheFileThatHasTheValue) {
  const std::string lowest =
      write("lowest.json", R"({"optimizer": {"eps": 1, "deep": {"a": 1}}})");
  const std::string base = write("base.json", R"({
    "extends": "lowest.json",
    "optimizer": {"lr": "fast", "type": 1, "deep": {"b": 1}}, "typo": 1})");
  const std::string file = write(
      "top.json", R"({"extends": "base.json", "optimizer": {"type": 2}})");
  const std::vector<std::string> overrides{"optimizer.wd=1"};
  const ConfigReader config = read_config_file(file, overrides);
  const ConfigReader optimizer = config.get_object("optimizer");
  const auto text_of = [&](const char* key) {
    return error_of([&] { config_value<bool>(optimizer, required(key)); });
  };
  EXPECT_EQ(text_of("lr").rfind(base + ": optimizer.lr is", 0), 0u);
  EXPECT_EQ(text_of("type").rfind(file + ": optimizer.type is 2", 0), 0u);
  EXPECT_EQ(text_of("eps").rfind(lowest + ": optimizer.eps is", 0), 0u);
  EXPECT_EQ(text_of("wd").rfind("override 'optimizer.wd=1'", 0), 0u);
  EXPECT_EQ(text_of("absent").rfind(file + ": optimizer.absent", 0), 0u);
  const ConfigReader deep = optimizer.get_object("deep");
  expect_error([&] { config_value<bool>(deep, "a"); }, {lowest.c_str()});
  expect_error([&] { config_value<bool>(deep, "b"); }, {base.c_str()});
  expect_error([&] { config.finish(); }, {base.c_str(), "typo"});
}

TEST_F(ConfigFiles, ACycleNamesTheFiles) {
  write("a.json", R"({"extends": "sub/b.json"})");
  const std::string b = write("sub/b.json", R"({"extends": "../a.json"})");
  expect_error(
      [&] { read_config_file(b); },
      {"extend each other",
       (folder_ / "a.json").c_str(),
       (folder_ / "sub/b.json").c_str()});
  const std::string local = write("own.json", R"({"extends": "own.json"})");
  expect_error([&] { read_config_file(local); }, {"extend each other"});
}

TEST_F(ConfigFiles, AChainIsReadFromItsEnd) {
  write("base.json", R"({"a": 1})");
  write("middle.json", R"({"extends": "base.json", "b": 2})");
  const std::string file = write("top.json", R"({"extends": "middle.json"})");
  const ConfigReader config = read_config_file(file);
  EXPECT_EQ(config_value<int64_t>(config, "a"), 1);
  EXPECT_EQ(config_value<int64_t>(config, "b"), 2);
}

TEST_F(ConfigFiles, YamlIsToBeConverted) {
  const std::string file = write("c.yaml", "task: supervised\n");
  expect_error(
      [&] { read_config_file(file, {}); },
      {"c.yaml:1:2", "A configuration is JSON", "yaml.safe_load", "c.json"});
  EXPECT_TRUE(
      read_config_file(write("d.yaml", R"({"a": 1})"), {}).contains("a"));
}

TEST_F(ConfigFiles, BadFilesAreNamed) {
  expect_error(
      [&] { read_config_file(write("a.json", R"({"extends": 3})")); },
      {"a.json: extends is 3"});
  expect_error(
      [&] { read_config_file(write("a.json", R"({"extends": "no.json"})")); },
      {"no.json', which '", "a.json' extends, does not exist"});
  write("list.json", "[1]");
  expect_error(
      [&] { read_config_file(write("a.json", R"({"extends": "list.json"})")); },
      {"list.json", "a.json", "expected an object"});
}

} // namespace tessera::runtime::config_file_test
