// SPDX-License-Identifier: Apache-2.0
// EngineOptions as a configuration.
#include "tessera/engine/engine_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/json_schema.h"
#include "tessera/engine/optim/optimizer_rules.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_schema.h"

namespace tessera::engine_config_test {

namespace {

using Json = nlohmann::ordered_json;

EngineOptions read(const std::string& text, Json* resolved = nullptr) {
  const runtime::ConfigReader reader(
      runtime::parse_json(text, "c.json"), "c.json");
  EngineOptions options = read_engine_options(reader);
  reader.finish();
  if (resolved != nullptr) {
    *resolved = reader.resolved();
  }
  return options;
}

bool can_be_read(const Json& config) {
  try {
    read(config.dump());
    return true;
  } catch (const Error&) {
    return false;
  }
}

Json engine_schema() {
  EngineOptions defaults;
  return runtime::describe_list(runtime::list_of(defaults)).schema;
}

} // namespace

TEST(EngineConfig, WhatProgramsSetCanBeWritten) {
  const EngineOptions options = read(R"({
    "optimizer": {"type": "lamb", "max_trust_ratio": 3},
    "sharding": {
      "broadcast_from_rank0": false,
      "vocabulary_apart": true, "modules": [
        {"path": "a", "group": true, "reshard_after_forward": false},
        {"type": "B", "zero_stage": 2, "float32": true, "ignored": true}]
    },
    "loss_scale": {"growth_factor": 4, "backoff_factor": 0.25},
    "log_memory": false
  })");
  EXPECT_EQ(options.optimizer.rule.as<LambOptions>().max_trust_ratio, 3.0);
  EXPECT_FALSE(options.sharding.broadcast_from_rank0);
  const GroupPolicy& groups = options.sharding.groups;
  EXPECT_TRUE(groups.vocabulary_apart);
  const std::vector<ModuleRule>& modules = options.sharding.modules;
  ASSERT_EQ(modules.size(), 2u);
  EXPECT_EQ(modules[0].path, "a");
  EXPECT_TRUE(modules[0].options.group);
  EXPECT_EQ(modules[0].options.reshard_after_forward, false);
  EXPECT_EQ(modules[0].options.zero_stage, std::nullopt);
  EXPECT_FALSE(modules[0].options.float32 || modules[0].options.ignored);
  EXPECT_EQ(modules[1].type, "B");
  EXPECT_FALSE(modules[1].options.group);
  EXPECT_EQ(modules[1].options.reshard_after_forward, std::nullopt);
  EXPECT_EQ(modules[1].options.zero_stage, 2);
  EXPECT_TRUE(modules[1].options.float32 && modules[1].options.ignored);
  EXPECT_EQ(options.loss_scale.growth_factor, 4.0);
  EXPECT_EQ(options.loss_scale.backoff_factor, 0.25);
  EXPECT_FALSE(options.log_memory);

  const auto muon = read(R"({"optimizer": {"type": "muon", "nesterov": false,
        "newton_schulz_steps": 3, "match_adamw": false,
        "compute_dtype": "float32"}})")
                        .optimizer.rule.as<MuonOptions>();
  EXPECT_FALSE(muon.nesterov);
  EXPECT_EQ(muon.newton_schulz_steps, 3);
  EXPECT_FALSE(muon.match_adamw);
  EXPECT_EQ(muon.compute_dtype, at::kFloat);

  const auto adan =
      read(R"({"optimizer": {"type": "adan", "betas": [0.9, 0.8, 0.7],
        "eps": 1e-6, "no_prox": true}})")
          .optimizer.rule.as<AdanOptions>();
  EXPECT_EQ(adan.beta1, 0.9);
  EXPECT_EQ(adan.beta2, 0.8);
  EXPECT_EQ(adan.beta3, 0.7);
  EXPECT_EQ(adan.eps, 1e-6);
  EXPECT_TRUE(adan.no_prox);
  expect_error(
      [] { read(R"({"optimizer": {"type": "adan", "betas": [0.9, 0.999]}})"); },
      {"optimizer.betas", "three numbers"});

  const EngineOptions saving = read(R"({
    "optimizer": {"type": "one_bit_adam", "freeze_step": 30},
    "sharding": {"communication":
      {"gather": "int8", "reduce": "int4", "block_elements": 64},
      "modules": [{"path": "norm", "full_precision": true}]}})");
  EXPECT_EQ(saving.optimizer.rule.as<OneBitAdamOptions>().freeze_step, 30);
  EXPECT_EQ(saving.sharding.communication.gather, Compression::kInt8);
  EXPECT_EQ(saving.sharding.communication.reduce, Compression::kInt4);
  EXPECT_EQ(saving.sharding.communication.block_elements, 64);
  EXPECT_TRUE(saving.sharding.modules[0].options.full_precision);
  const auto zero_one = read(R"({"optimizer": {"type": "zero_one_adam",
        "var_freeze_step": 9, "var_update_scaler": 2}})")
                            .optimizer.rule.as<ZeroOneAdamOptions>();
  EXPECT_EQ(zero_one.var_freeze_step, 9);
  EXPECT_EQ(zero_one.var_update_scaler, 2);

  const auto adafactor =
      read(R"({"optimizer": {"type": "adafactor", "decay_exponent": 0.7,
        "eps": 1e-20, "min_scale": 0.01}})")
          .optimizer.rule.as<AdafactorOptions>();
  EXPECT_EQ(adafactor.decay_exponent, 0.7);
  EXPECT_EQ(adafactor.eps, 1e-20);
  EXPECT_EQ(adafactor.min_scale, 0.01);
}

TEST(EngineConfig, ParametersCanHaveAnOptimizerOfTheirOwn) {
  const OptimizerOptions options = read(R"({"optimizer": {
    "type": "muon", "lr": 0.02, "parameters": [
      {"pattern": ".*bias", "type": "sgd", "momentum": 0.5, "lr_scale": 0.1},
      {"pattern": "head.*", "weight_decay": 0}]}})")
                                       .optimizer;
  ASSERT_EQ(options.parameters.size(), 2u);
  const ParameterRule& bias = options.parameters[0];
  EXPECT_EQ(bias.lr_scale, 0.1);
  ASSERT_TRUE(bias.rule);
  EXPECT_EQ(bias.rule->as<SgdOptions>().momentum, 0.5);
  const ParameterRule& head = options.parameters[1];
  EXPECT_FALSE(head.rule);
  // An earlier rule's factor stays.
  EXPECT_EQ(head.lr_scale, std::nullopt);
  EXPECT_EQ(head.weight_decay, 0.0);
  expect_error(
      [] {
        read(R"({"optimizer": {"parameters": [{"pattern": "a", "eps": 1}]}})");
      },
      {"optimizer.parameters.0.eps is not a known key"});
}

TEST(EngineConfig, WeightDecayIsThatOfTheOptimizer) {
  EXPECT_EQ(read("{}").optimizer.weight_decay, 0.01);
  EXPECT_EQ(
      read(R"({"optimizer": {"type": "sgd"}})").optimizer.weight_decay, 0.0);
  EXPECT_EQ(
      read(R"({"optimizer": {"type": "adan"}})").optimizer.weight_decay, 0.0);
  EXPECT_EQ(
      read(R"({"optimizer": {"type": "sgd", "weight_decay": 0.5}})")
          .optimizer.weight_decay,
      0.5);
}

TEST(EngineConfig, WeightDecayOfAParameterIsThatOfItsOwnOptimizer) {
  const auto decay = [](const char* rule) {
    const EngineOptions options = read(
        R"({"optimizer": {"type": "adam", "weight_decay": 0.3, "parameters": [)" +
        std::string(rule) + "]}}");
    return engine::OptimizerRules(options.optimizer)
        .settings_for({"bias"})
        .weight_decay;
  };
  EXPECT_EQ(decay(R"({"pattern": "bias"})"), 0.3);
  EXPECT_EQ(decay(R"({"pattern": "bias", "type": "adamw"})"), 0.01);
  EXPECT_EQ(decay(R"({"pattern": "bias", "type": "sgd"})"), 0.0);
  EXPECT_EQ(
      decay(R"({"pattern": "bias", "type": "sgd", "weight_decay": 0.5})"), 0.5);
}

TEST(EngineConfig, Float32ParametersAreTheModulesOwn) {
  EXPECT_EQ(
      read(R"({"precision": {"parameters": "float32"}})").precision.parameters,
      std::nullopt);
}

TEST(EngineConfig, WhatIsResolvedReadsAsTheSame) {
  for (const char* text :
       {"{}",
        R"({"optimizer": {"type": "muon", "parameters": [
            {"pattern": "a", "type": "lion"}]}, "offload": {"ratio": 0.5},
            "placement": {"optimizer": "host", "activations": "auto"},
            "sharding": {"modules": [{"path": "a", "zero_stage": 1}]}})"}) {
    Json once;
    read(text, &once);
    Json twice;
    read(once.dump(), &twice);
    EXPECT_EQ(once, twice);
    EXPECT_EQ(once["optimizer"]["lr"], 1e-3);
    EXPECT_TRUE(tests::JsonSchema(engine_schema()).accepts(once)) << once;
  }
}

namespace {

/// Values of all types, at and beyond the limits of a property.
std::vector<Json> candidates_for(const Json& property) {
  std::vector<Json> values{
      nullptr,
      true,
      1,
      -1,
      0.5,
      -0.5,
      "text",
      "11GB",
      "auto",
      Json::array(),
      Json::array({"a"}),
      Json::array({0.5, 0.5}),
      Json::array({0.5, 1.5}),
      Json::object()};
  for (const char* limit :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (property.contains(limit)) {
      const Json& at = property[limit];
      values.push_back(at);
      if (at.is_number_integer()) {
        values.push_back(at.get<int64_t>() - 1);
        values.push_back(at.get<int64_t>() + 1);
      }
    }
  }
  for (const Json& name : property.value("enum", Json::array())) {
    values.push_back(name);
  }
  return values;
}

/// Puts every candidate at every key, and compares the schema with the reader.
class Agreement {
 public:
  void visit(const Json& object, const Json& config, const std::string& path) {
    for (const auto& [key, property] : object["properties"].items()) {
      const Json::json_pointer place(path + "/" + key);
      if (property.contains("properties")) {
        visit(property, config, path + "/" + key);
        continue;
      }
      for (const Json& value : candidates_for(property)) {
        Json changed = config;
        changed[place] = value;
        const bool fits = schema_.accepts(changed);
        EXPECT_EQ(fits, can_be_read(changed)) << changed;
        accepted_ += fits ? 1 : 0;
        refused_ += fits ? 0 : 1;
      }
      if (property.contains("items") &&
          property["items"].contains("properties")) {
        Json with_element = config;
        with_element[place] = Json::array({Json::object()});
        for (const Json& name :
             property["items"].value("required", Json::array())) {
          with_element[place][0][name.get<std::string>()] = "a";
        }
        visit(property["items"], with_element, path + "/" + key + "/0");
      }
    }
    for (const Json& branch : object.value("allOf", Json::array())) {
      for (const auto& [key, names] : branch["if"]["properties"].items()) {
        Json chosen = config;
        chosen[Json::json_pointer(path + "/" + key)] = names["enum"][0];
        visit(branch["then"], chosen, path);
      }
    }
  }

  int accepted() const {
    return accepted_;
  }
  int refused() const {
    return refused_;
  }

 private:
  tests::JsonSchema schema_{engine_schema()};
  int accepted_ = 0;
  int refused_ = 0;
};

} // namespace

TEST(EngineConfig, TheSchemaAcceptsWhatCanBeRead) {
  Agreement agreement;
  agreement.visit(engine_schema(), Json::object(), "");
  EXPECT_GT(agreement.accepted(), 300);
  EXPECT_GT(agreement.refused(), 900);
}

} // namespace tessera::engine_config_test
