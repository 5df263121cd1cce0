// SPDX-License-Identifier: Apache-2.0
// What a config.json leaves out means what it means to transformers; see
// tests/fixture_makers/config_defaults.py.
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"
#include "zoo/support.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::zoo::config_defaults_test {

namespace {

using nlohmann::json;

/// The values that the family uses for fields that are not in `given`.
std::map<std::string, json> defaults_of(
    const std::string& model_type,
    json given) {
  const auto record = std::make_shared<FieldRecord>();
  given["model_type"] = model_type;
  lazy([&] { return from_config(given, {.record = record}); });
  return record->defaults();
}

/// With the fields of transformers 5's section as the ones of their own that
/// they are in transformers 4.
json flattened(json fields) {
  const json rope = fields.value("rope_parameters", json());
  if (rope.is_object()) {
    fields.erase("rope_parameters");
    fields.update(rope);
  }
  return fields;
}

/// Null is what depends on other fields, or what is not used.
bool agree(const json& native, const json& foreign) {
  return foreign.is_null() || native == foreign;
}

} // namespace

TEST(ConfigDefaults, AreThoseOfTransformers) {
  const json table = read_json(fixture("config_defaults.json"));
  ASSERT_EQ(table.size(), 2U) << "transformers 4 and 5";
  std::set<std::string> compared;
  for (const auto& [version, families] : table.items()) {
    for (const auto& [model_type, family] : families.items()) {
      const json foreign = flattened(family["defaults"]);
      // What another version has as the default, where they differ.
      const json other = flattened(table[version == "4" ? "5" : "4"]
                                       .value(model_type, json::object())
                                       .value("defaults", json::object()));
      for (const auto& [name, native] :
           defaults_of(model_type, family["given"])) {
        if (!foreign.contains(name) || foreign[name].is_null()) {
          continue;
        }
        compared.insert(model_type + "." + name);
        EXPECT_TRUE(
            agree(native, foreign[name]) ||
            (other.contains(name) && agree(native, other[name])))
            << model_type << ": '" << name << "' is " << native
            << ", in transformers " << version << " " << foreign[name];
      }
    }
  }
  EXPECT_GE(compared.size(), 150U) << "fields are no longer compared";
}

// Without a model, from the fields.
TEST(ConfigDefaults, PositionsAreThoseOfTheModels) {
  int limited = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(fixture("models"))) {
    const auto file = entry.path() / "config.json";
    if (!std::filesystem::exists(file)) {
      continue;
    }
    const json config = read_json(file);
    const auto model = lazy([&] { return from_config(config); });
    EXPECT_EQ(position_limit_in(config), model->position_limit()) << file;
    limited += model->position_limit() ? 1 : 0;
  }
  EXPECT_GT(limited, 30);
  EXPECT_EQ(position_limit_in(json{{"model_type", "gpt3"}}), std::nullopt);
  EXPECT_EQ(position_limit_in(json{{"model_type", "gpt2"}}), std::nullopt);
}

// Every family of transformers' is in the table.
TEST(ConfigDefaults, CoverTheZoo) {
  const std::set<std::string> others{
      "chatglm", "cpm1", "cpm2", "cpm3", "moco_v3"}; // transformers lacks them
  const json table = read_json(fixture("config_defaults.json"));
  for (const std::string& model_type : registered_models()) {
    EXPECT_NE(others.contains(model_type), table["5"].contains(model_type))
        << model_type;
  }
}

} // namespace tessera::zoo::config_defaults_test
