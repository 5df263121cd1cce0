// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/config_fields.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/zoo/models/pretrained.h"
#include "zoo/model_fixture.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo::config_fields_test {

// Messages about a model's layers list what they can come from.
TEST(ConfigFields, RecordWhatMatters) {
  const ConfigFields fields(
      {{"layer_norm_epsilon", 0.25},
       {"eos_token_id", 3},
       {"attn_pdrop", 0.5},
       {"attention_bias", true},
       {"n_inner", nullptr},
       {"d_model", 8}},
      "config.json");
  EXPECT_EQ(fields.size({"n_layer"}, 2), 2);
  EXPECT_EQ(fields.find<int64_t>({"n_inner"}), std::nullopt);
  EXPECT_TRUE(fields.get<bool>({"attention_bias"}, false));
  EXPECT_FALSE(fields.get<bool>({"mlp_bias"}, false));
  EXPECT_EQ(fields.number({"eps", "layer_norm_epsilon"}, 1), 0.25);
  EXPECT_EQ(fields.number({"scale"}, 1), 1);
  EXPECT_EQ(fields.token({"eos_token_id"}, 10), 3);
  EXPECT_EQ(fields.token({"pad_token_id"}, 10), std::nullopt);
  EXPECT_EQ(fields.probability({"attn_pdrop"}), 0.5);
  EXPECT_EQ(fields.size({"d_model"}), 8);
  const FieldRecord& record = fields.record();
  EXPECT_EQ(
      record.text(),
      "n_layer 2 (default), n_inner null, attention_bias true, d_model 8");
  EXPECT_EQ(
      record.defaults(),
      (std::map<std::string, nlohmann::json>{
          {"n_layer", 2},
          {"mlp_bias", false},
          {"scale", 1.0},
          {"pad_token_id", nullptr}}));
}

// A field of the reference library that a model does not read is named, unless
// it does not change results.
TEST(ConfigFields, ThatAreNotReadAreNamed) {
  const auto load = [](const nlohmann::json& more) {
    const TemporaryFolder folder;
    const auto model = fixture("models") / "llama";
    for (const auto& file : std::filesystem::directory_iterator(model)) {
      std::filesystem::copy(file.path(), folder / file.path().filename());
    }
    nlohmann::json config = read_json(model / "config.json");
    config.update(more);
    std::ofstream(folder / "config.json") << config;
    from_pretrained(folder.path());
  };
  const auto loaded = [&](const nlohmann::json& more) {
    testing::internal::CaptureStderr();
    load(more);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(loaded({{"use_cache", false}, {"_name", 1}}), "");
  EXPECT_EQ(loaded({{"is_decoder", false}}), "");
  const std::string log =
      loaded({{"router_jitter", 30.0}, {"pruned_heads", {{"0", {1}}}}});
  for (const char* part :
       {"config.json: ignored", "router_jitter=30.0", "pruned_heads="}) {
    EXPECT_NE(log.find(part), std::string::npos) << part << "\n" << log;
  }
  const std::vector<std::pair<std::string, nlohmann::json>> refused{
      {"quantization_config", {{"quant_method", "bitsandbytes"}}},
      {"quantization_bit", 4},
      {"final_logit_softcapping", 3.0},
      {"attn_logit_softcapping", 30.0},
      {"residual_multiplier", 2}};
  for (const auto& field : refused) {
    const std::string& key = field.first;
    expect_error(
        [&] {
          load({{key, field.second}});
        },
        {("config.json: '" + key + "' is").c_str(),
         "not implemented",
         "remove"});
  }
  EXPECT_EQ(
      loaded(
          {{"quantization_config", nullptr},
           {"quantization_bit", 0},
           {"final_logit_softcapping", nullptr},
           {"residual_multiplier", 1.0}}),
      "");
}

TEST(ConfigFields, OfModelsThatTransformersWroteAreAllKnown) {
  for (const auto& folder :
       std::filesystem::directory_iterator(fixture("models"))) {
    testing::internal::CaptureStderr();
    from_pretrained(folder.path(), {.lazy = true});
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("not implemented"), std::string::npos) << log;
  }
}

TEST(ConfigFields, HaveOneScalingOfRotaryPositions) {
  const auto scaled = [](const nlohmann::json& older) {
    return ConfigFields(
               {{"rope_parameters",
                 {{"rope_type", "linear"},
                  {"factor", 2.0},
                  {"rope_theta", 5000.0}}},
                {"rope_scaling", older}},
               "config.json")
        .rotary(8, 64);
  };
  EXPECT_EQ(scaled(nullptr).scaling.factor, 2);
  const RotaryOptions same = scaled({{"type", "linear"}, {"factor", 2.0}});
  EXPECT_EQ(same.scaling.factor, 2);
  EXPECT_EQ(same.base, 5000);
  expect_error(
      [&] {
        scaled({{"type", "linear"}, {"factor", 4.0}});
      },
      {"config.json", "both 'rope_parameters' and 'rope_scaling'", "'factor'"});
  expect_error([&] { scaled({{"type", "dynamic"}}); }, {"'type'", "dynamic"});
}

} // namespace tessera::zoo::config_fields_test
