// SPDX-License-Identifier: Apache-2.0
// The keys of `tessera train`: what is published is what is read.
#include "tessera/tasks/config_keys.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

#include "support/expect_error.h"
#include "support/json_schema.h"
#include "support/paths.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/tasks/foreign_keys.h"
#include "tessera/tasks/training_config.h"

namespace tessera::tasks::config_keys_test {

namespace {

using Json = nlohmann::ordered_json;

std::string source(const std::string& path) {
  return runtime::read_text_file(tests::source_dir() + "/" + path);
}

/// Recipes of all tasks, next to which other files are made.
const char* const kRecipes[] = {
    "finetune_minilm.json",
    "finetune_minilm_lora.json",
    "finetune_bert_large.json",
    "finetune_chat_lora.json",
    "train_gpt_13b.json",
    "train_gpt_python.json",
    "train_vit_stripes.json",
    "train_t5_reversed.json",
    "pretrain_bert_counting.json",
};

Json read(
    const std::string& file,
    const std::vector<std::string>& overrides = {}) {
  return read_training_config(file, overrides).resolved;
}

} // namespace

TEST(ConfigKeys, TheTableIsThatOfTheDocumentation) {
  const std::string page = source("configs/README.md");
  const std::string begin = "<!-- tessera keys --markdown -->\n";
  const size_t at = page.find(begin);
  const size_t end = page.find("<!-- end -->", at);
  ASSERT_NE(at, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(
      page.substr(at + begin.size(), end - at - begin.size()),
      runtime::markdown_table(config_rows()))
      << "build tessera-run, which writes it";
}

TEST(ConfigKeys, TheSchemaIsThatOfTheDocumentation) {
  EXPECT_EQ(source("docs/config.schema.json"), config_schema().dump(0) + "\n")
      << "build tessera-run, which writes it";
}

TEST(ConfigKeys, RecipesFitTheSchemaAndSoDoTheirResolvedForms) {
  const tests::JsonSchema schema(config_schema());
  for (const std::string name : kRecipes) {
    const std::string file = tests::source_dir() + "/configs/" + name;
    EXPECT_TRUE(schema.accepts(Json::parse(source("configs/" + name)))) << name;
    const Json resolved = read(file);
    EXPECT_TRUE(schema.accepts(resolved)) << resolved;
    // Both refuse what is misspelled, in every section.
    for (const auto& [section, value] : resolved.items()) {
      if (value.is_object()) {
        Json wrong = resolved;
        wrong[section]["no_such_key"] = 1;
        EXPECT_FALSE(schema.accepts(wrong)) << name << " " << section;
        expect_error(
            [&, &path = section] { read(file, {path + ".no_such_key=1"}); },
            {"no_such_key"});
      }
    }
  }
}

TEST(ConfigKeys, KeysOfOtherTasksDoNotFit) {
  const tests::JsonSchema schema(config_schema());
  // Files that extend others, so that nothing is required.
  const auto fits = [&](const char* text) {
    Json config = Json::parse(text);
    config["extends"] = "a.json";
    return schema.accepts(config);
  };
  EXPECT_TRUE(fits(R"({"task": "language_model",
    "data": {"token_type": "int32"}})"));
  EXPECT_FALSE(
      fits(R"({"task": "examples", "data": {"token_type": "int32"}})"));
  EXPECT_TRUE(
      fits(R"({"task": "examples", "model": {"classes": ["a", "b"]}})"));
  EXPECT_FALSE(
      fits(R"({"task": "language_model", "model": {"classes": ["a", "b"]}})"));
  EXPECT_FALSE(fits(R"({"task": "chess"})"));
  EXPECT_FALSE(fits(R"({"task": "examples", "schedule": {"gamma": 0.5}})"));
  EXPECT_TRUE(fits(
      R"({"task": "examples", "schedule": {"decay": "exponential", "gamma": 0.5}})"));
}

TEST(ConfigKeys, AFileThatExtendsNoneHasAllThatIsRequired) {
  const tests::JsonSchema schema(config_schema());
  const std::string recipe = "finetune_minilm_lora.json";
  const Json full = Json::parse(source("configs/" + recipe));
  EXPECT_TRUE(schema.accepts(full));
  for (const char* path :
       {"/task",
        "/output",
        "/output/folder",
        "/data",
        "/data/train",
        "/model/lora/target_modules"}) {
    const Json::json_pointer pointer(path);
    Json part = full;
    part.at(pointer.parent_pointer()).erase(pointer.back());
    EXPECT_FALSE(schema.accepts(part)) << path;
    part["extends"] = recipe;
    EXPECT_TRUE(schema.accepts(part)) << path;
  }
  Json without = full;
  without.at("model").erase("lora"); // that it is absent means something
  EXPECT_TRUE(schema.accepts(without));
}

TEST(ConfigKeys, ASectionHasASchemaOfItsOwn) {
  const auto fits = [](const char* section, const char* text) {
    return tests::JsonSchema(config_schema(section)).accepts(Json::parse(text));
  };
  EXPECT_TRUE(fits("sharding", R"({"zero_stage": 2})"));
  EXPECT_FALSE(fits("sharding", R"({"zero_stage": 4})"));
  EXPECT_FALSE(fits("sharding", R"({"lr": 1})"));
  EXPECT_TRUE(fits("optimizer", R"({"type": "lion", "betas": [0.9, 0.9]})"));
  EXPECT_TRUE(fits("optimizer.parameters[].lr_scale", "0.5"));
  EXPECT_FALSE(fits("optimizer.parameters[].lr_scale", "-1"));
  // Of several tasks and branches: two or three betas.
  EXPECT_TRUE(fits("optimizer.betas", "[0.9, 0.99, 0.9]"));
  EXPECT_TRUE(fits("optimizer.betas", "[0.9, 0.99]"));
  EXPECT_FALSE(fits("optimizer.betas", "[0.9]"));
  EXPECT_TRUE(fits("data", R"({"token_type": "int32"})"));
  EXPECT_TRUE(fits("data", R"({"text_key": ["a", "b"]})"));
  EXPECT_FALSE(fits("data", R"({"text_key": "a", "token_type": "int32"})"));
  expect_error(
      [] { config_schema("shardings"); }, {"there is no key 'shardings'"});
}

TEST(ConfigKeys, ARecipeMayExtendAnother) {
  const std::string file = testing::TempDir() + "config_keys_extends.json";
  std::ofstream(file) << Json{
      {"extends", tests::source_dir() + "/configs/train_vit_stripes.json"},
      {"optimizer", {{"lr", 0.125}}}};
  const Json base = read(
      tests::source_dir() + "/configs/train_vit_stripes.json",
      {"optimizer.lr=0.125"});
  EXPECT_EQ(read(file), base);
  std::filesystem::remove(file);
}

TEST(ConfigKeys, NamesOfOtherLibrariesLeadToKeys) {
  std::set<std::string> paths;
  for (const runtime::OptionRow& row : config_rows()) {
    paths.insert(row.path);
  }
  for (const runtime::ForeignKey& key : foreign_keys()) {
    const std::string here(key.here);
    EXPECT_EQ(paths.count(here.substr(0, here.find_first_of("=, "))), 1u)
        << here;
  }
}

TEST(ConfigKeys, FormerKeysAreRefusedWithTheirPresentNamesAllAtOnce) {
  Json config = Json::parse(source("configs/train_vit_stripes.json"));
  std::vector<std::string> expected;
  for (const runtime::ForeignKey& key : foreign_keys()) {
    const std::string path(key.name);
    if (const size_t dot = path.find('.'); dot != std::string::npos) {
      config[path.substr(0, dot)][path.substr(dot + 1)] = "auto";
      expected.push_back(
          path + " is not a known key; use '" + std::string(key.here) + "'");
    }
  }
  ASSERT_GT(expected.size(), 9u);
  const std::string file = testing::TempDir() + "config_keys_former.json";
  std::ofstream(file) << config;
  for (const std::string& line : expected) {
    expect_error([&] { read(file); }, {line.c_str()});
  }
  std::filesystem::remove(file);
}

} // namespace tessera::tasks::config_keys_test
