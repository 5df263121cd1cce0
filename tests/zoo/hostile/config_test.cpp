// SPDX-License-Identifier: Apache-2.0
// config.json with fields that are wrong, huge, missing or no JSON at all.

#include "zoo/family_fixtures.h"
#include "zoo/hostile/folder.h"
#include "zoo/hostile/values.h"

#include <map>

namespace tessera::zoo::config_test {
namespace {

using nlohmann::json;

void write(const std::filesystem::path& path, const std::string& text) {
  write_text(path, text);
}

/// config.json with some fields replaced.
std::string with_fields(
    const json& config,
    const std::map<std::string, std::string>& replaced) {
  std::string text = "{";
  for (const auto& [key, value] : config.items()) {
    const auto found = replaced.find(key);
    text += (text.size() > 1 ? ", " : "") + json(key).dump() + ": " +
            (found == replaced.end() ? value.dump() : found->second);
  }
  for (const auto& [key, value] : replaced) {
    if (!config.contains(key)) {
      text += ", " + json(key).dump() + ": " + value;
    }
  }
  return text + "}";
}

class HostileFields : public HostileFolders,
                      public ::testing::WithParamInterface<const char*> {};

/// Of every kind one, and the sizes that ask for the most.
const std::vector<std::string>& values_of_a_field() {
  static const std::vector<std::string> all = {
      "0",
      "-1",
      "5",
      "268435456",
      "2147483648",
      "4611686018427387904",
      "18446744073709551615",
      "0.37",
      "-0.5",
      "1e300",
      "1e400",
      "NaN",
      "true",
      "false",
      "null",
      "\"\"",
      "\"gleu\"",
      "[]",
      "[1, \"a\", null]",
      "{}",
      "{\"rope_type\": \"longrope\"}"};
  return all;
}

/// Fields that files may have beside those of the fixtures.
const std::vector<std::string> kMoreFields = {
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "num_labels",
    "id2label",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "problem_type",
    "n_inner",
    "rotary_dim",
    "classifier_dropout",
    "partial_rotary_factor",
    "num_key_value_heads",
    "torch_dtype",
    "expert_capacity_factor",
    "word_embed_proj_dim",
    "mlp_only_layers"};

} // namespace

TEST_P(HostileFields, AreRefusedOrRight) {
  Hostile hostile(GetParam());
  const json config = json::parse(hostile.original("config.json"));
  std::vector<std::string> keys = kMoreFields;
  for (const auto& [key, value] : config.items()) {
    keys.push_back(key);
  }
  Numbers numbers(1);
  for (int i = 0; i < 100; ++i) {
    std::map<std::string, std::string> replaced;
    for (size_t n = 1 + numbers.below(3); n > 0; --n) {
      const std::string& key = numbers.of(keys);
      replaced[key] = numbers.of(hostile_values());
    }
    std::string label;
    for (const auto& [key, value] : replaced) {
      label += key + ": " + value + "; ";
    }
    write(hostile.path("config.json"), with_fields(config, replaced));
    hostile.load(label);
  }
  for (const std::string& key : keys) {
    json without = config;
    without.erase(key);
    write(hostile.path("config.json"), without.dump());
    hostile.load("no " + key);
  }
  EXPECT_GT(hostile.refused(), 50);
  EXPECT_GT(hostile.loaded(), 10);
}

TEST_P(HostileFields, AreNamedOneByOne) {
  Hostile hostile(GetParam());
  const json config = json::parse(hostile.original("config.json"));
  for_each_change(
      config,
      values_of_a_field(),
      [&](const std::string& key, const std::string& text) {
        write(hostile.path("config.json"), text);
        hostile.load(key + " in " + text, key);
      });
  EXPECT_GT(hostile.refused(), 50);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    HostileFields,
    ::testing::ValuesIn(kFamilyFixtures),
    [](const auto& one) { return std::string(one.param); });

TEST_F(HostileFolders, HaveTextsThatAreCutOrGarbled) {
  Hostile hostile("llama_yarn");
  const std::string text = hostile.original("config.json");
  Numbers numbers(2);
  for (int i = 0; i < 300; ++i) {
    const std::string changed = damaged(text, numbers);
    write(hostile.path("config.json"), changed);
    hostile.load(changed);
  }
  for (const std::string& wrong :
       {std::string(),
        std::string("[]"),
        std::string("null"),
        std::string(100'000, '['),
        "{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') +
            "}",
        std::string("\xff\xfe{}"),
        std::string("{\"model_type\": \"llama\", \"model_type\": \"bert\"}"),
        std::string("{\"model_type\": \"\xc3\x28\"}"),
        std::string("{\"model_type\": {\"bert\": 1}}"),
        std::string("{\"model_type\": \"../bert\"}")}) {
    write(hostile.path("config.json"), wrong);
    hostile.load(wrong.substr(0, 60));
  }
  EXPECT_GT(hostile.refused(), 200);
}

// The table in configs/README.md.
TEST(FreshConfig, NeedsOnlyTheseFields) {
  const json llama = {
      {"vocab_size", 61},
      {"hidden_size", 24},
      {"intermediate_size", 40},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4}};
  // Transformers has a number of its own for these: 32, or 16.
  json grouped = llama;
  grouped["num_key_value_heads"] = 2;
  json moe = llama;
  moe.update(
      {{"moe_intermediate_size", 8},
       {"num_experts", 4},
       {"num_experts_per_tok", 2}});
  json shared = moe;
  shared["shared_expert_intermediate_size"] = 8;
  shared["num_key_value_heads"] = 2;
  const json gpt = {
      {"vocab_size", 61}, {"n_embd", 128}, {"n_layer", 2}, {"n_head", 2}};
  const std::map<std::string, json> needed = {
      {"gpt2", gpt},
      {"gptj", gpt},
      {"opt",
       {{"vocab_size", 61},
        {"hidden_size", 24},
        {"ffn_dim", 40},
        {"num_hidden_layers", 2},
        {"num_attention_heads", 4}}},
      {"llama", llama},
      {"qwen2", grouped},
      {"qwen3", grouped},
      {"glm", llama},
      {"qwen2_moe", shared},
      {"qwen3_moe", moe},
      {"chatglm",
       {{"vocab_size", 61},
        {"hidden_size", 24},
        {"ffn_hidden_size", 40},
        {"num_layers", 2},
        {"num_attention_heads", 2}}}};
  for (const auto& [type, fields] : needed) {
    SCOPED_TRACE(type);
    json config = fields;
    config["model_type"] = type;
    if (type == "glm") {
      config["hidden_size"] = 32; // half of a head's features is rotated
    }
    EXPECT_NO_THROW(from_config(config));
    for (const auto& [key, value] : config.items()) {
      json without = config;
      without.erase(key);
      try {
        from_config(without);
        ADD_FAILURE() << key << " is not needed";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(key), std::string::npos)
            << error.what();
      }
    }
  }
}

} // namespace tessera::zoo::config_test
