// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <map>
#include <string>

#include "support/config_values.h"
#include "support/expect_error.h"
#include "tessera/runtime/core/json_text.h"

namespace tessera::runtime::config_test {

using tests::config_value;

namespace {

enum class Device { kCpu, kCuda };

ConfigReader read(std::string_view text) {
  return {parse_json(text, "c.json"), "c.json"};
}

Device get_device(const ConfigReader& config, bool is_required = false) {
  Device device = Device::kCpu;
  config.read([&](OptionFields& fields) {
    fields.choice(
        {"device", is_required},
        device,
        {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
        "");
  });
  return device;
}

int64_t get_int(const ConfigReader& config, OptionKey key, IntRange range) {
  int64_t value = 0;
  config.read(
      [&](OptionFields& fields) { fields.field(key, value, range, ""); });
  return value;
}

double get_double(
    const ConfigReader& config,
    const char* key,
    DoubleRange range) {
  double value = 0;
  config.read(
      [&](OptionFields& fields) { fields.field(key, value, range, ""); });
  return value;
}

struct Stage {
  int64_t layers = 1;
};

void visit_fields(OptionFields& fields, Stage& stage) {
  fields.field("layers", stage.layers, {}, "");
}

std::vector<Stage> stages_of(
    const ConfigReader& config,
    const char* key = "stages") {
  std::vector<Stage> stages;
  config.read([&](OptionFields& fields) { fields.objects(key, stages, ""); });
  return stages;
}

using Strings = std::vector<std::string>;

} // namespace

TEST(Config, MissingKeysNameThePathAndWhatIsExpected) {
  expect_error(
      [] { get_int(read("{}"), required("steps"), {.min = 1}); },
      {"c.json: steps is missing", "an integer of at least 1"});
  expect_error(
      [] {
        config_value<double>(
            read("{}").get_object("optimizer"), required("lr"));
      },
      {"c.json: optimizer.lr is missing", "a number"});
  expect_error(
      [] { get_device(read("{}"), true); }, {"one of \"cpu\", \"cuda\""});
  expect_error(
      [] {
        config_value<double>(
            read(R"({"learning_rat": 1})"), required("learning_rate"));
      },
      {"learning_rate is missing", "'learning_rat'"});
}

TEST(Config, AKeyThatIsMissingFromAnObjectOfOverridesIsTheirs) {
  const auto name_of = [](const char* text, const std::string& override_text) {
    const std::vector<std::string> overrides{override_text};
    config_value<std::string>(
        ConfigReader(nlohmann::json::parse(text), "c.json", overrides)
            .get_object("model")
            .get_object("lora"),
        required("name"));
  };
  expect_error(
      [&] { name_of(R"({"model": {"x": 1}})", "model.lora.r=4"); },
      {"override 'model.lora.r=4': model.lora.name is missing"});
  expect_error(
      [&] { name_of("{}", "model.lora.more.r=4"); },
      {"override 'model.lora.more.r=4': model.lora.name is missing"});
  expect_error(
      [&] { name_of(R"({"model": {"lora": {"a": 1}}})", "model.lora.r=4"); },
      {"c.json: model.lora.name is missing"});
  expect_error(
      [&] { name_of(R"({"model": {"lora": {}}})", "x=4"); },
      {"c.json: model.lora.name is missing"});
}

TEST(Config, WrongTypesNamePathValueAndExpectation) {
  const auto config = read(R"({
    "o": {"lr": "fast", "steps": 1e3, "shuffle": 1, "name": [1]},
    "big": 9223372036854775808, "files": ["a", 3], "list": {}, "l": [{}, 1]
  })");
  const auto o = config.get_object("o");
  expect_error(
      [&] { config_value<double>(o, "lr"); },
      {"c.json: o.lr is the string \"fast\"; expected a number"});
  expect_error(
      [&] { config_value<int64_t>(o, "steps"); },
      {"c.json: o.steps is 1000.0; expected an integer"});
  expect_error(
      [&] { config_value<bool>(o, "shuffle"); },
      {"c.json: o.shuffle is 1; expected true or false"});
  expect_error(
      [&] { config_value<std::string>(o, "name"); },
      {"c.json: o.name is the array [1]; expected a string"});
  expect_error(
      [&] { config_value<int64_t>(config, "big"); },
      {"big is 9223372036854775808"});
  expect_error(
      [&] { config_value<Strings>(config, "files"); },
      {"c.json: files.1 is 3; expected a string"});
  expect_error(
      [&] { config_value<std::vector<int64_t>>(config, "list"); },
      {"list is the object {}; expected an array, each element an integer"});
  expect_error(
      [&] { config.get_object("files"); },
      {"files is the array [\"a\",3]; expected an object"});
  expect_error([&] { stages_of(config, "l"); }, {"l.1 is 1"});
  expect_error([&] { stages_of(config, "o"); }, {"an array of objects"});
  expect_error([] { read("[1]"); }, {"c.json: ", "[1]", "expected an object"});
}

TEST(Config, RangesAreChecked) {
  const auto config = read(R"({"n": 0, "x": 1.0, "v": [1, 9]})");
  expect_error(
      [&] { get_int(config, "n", {.min = 1, .max = 4}); },
      {"n is 0; expected an integer from 1 to 4"});
  expect_error(
      [&] { get_int(config, "n", {.max = -1}); },
      {"n is 0; expected an integer of at most -1"});
  EXPECT_EQ(get_double(config, "x", {.min = 0, .max = 1}), 1.0);
  expect_error(
      [&] { get_double(config, "x", {.min = 0, .max = 1, .open_max = true}); },
      {"x is 1.0; expected a number of at least 0 and less than 1"});
  expect_error(
      [&] { get_double(config, "n", {.min = 0, .open_min = true}); },
      {"n is 0; expected a number greater than 0"});
  std::vector<int64_t> numbers;
  expect_error(
      [&] {
        config.read([&](OptionFields& fields) {
          fields.field("v", numbers, {.max = 8}, "");
        });
      },
      {"v.1 is 9", "at most 8"});
}

TEST(Config, WrongChoiceNamesTheNearest) {
  expect_error(
      [] { get_device(read(R"({"device": "cudo"})")); },
      {"device is the string \"cudo\"",
       "one of \"cpu\", \"cuda\"",
       "did you mean \"cuda\"?"});
  expect_error(
      [] { get_device(read(R"({"device": 3})")); },
      {"device is 3; expected one of"});
}

TEST(Config, UnknownKeysAreErrorsAtAnyDepth) {
  const auto config = read(
      R"({"optimizer": {"learning_rat": 1}, "stages": [{}, {"layrs": 2}]})");
  config_value<double>(config.get_object("optimizer"), "learning_rate");
  expect_error(
      [&] { config.finish(); },
      {"c.json: stages is not a known key; known keys: optimizer"});
  stages_of(config);
  expect_error(
      [&] { config.finish(); },
      {"c.json: optimizer.learning_rat is not a known key",
       "did you mean 'optimizer.learning_rate'?",
       "\nc.json: stages.1.layrs is not a known key",
       "'stages.1.layers'"});
}

TEST(Config, UnknownKeysHavePathOriginAndRemedy) {
  const ForeignKey foreign[] = {{"learning_rate", "optimizer.lr"}};
  const ConfigReader config(
      parse_json(R"({"learning_rate": 1})", "c.json"),
      "c.json",
      Strings{"optimizer.momentun=2"});
  config_value<double>(config.get_object("optimizer"), "momentum");
  const auto unknown = config.unknown_keys(foreign);
  ASSERT_EQ(unknown.size(), 2U);
  EXPECT_EQ(unknown[0].place(), "c.json: learning_rate");
  EXPECT_EQ(unknown[0].here, "optimizer.lr");
  EXPECT_EQ(unknown[0].remedy, "use 'optimizer.lr'");
  EXPECT_EQ(unknown[1].path, "optimizer.momentun");
  EXPECT_EQ(unknown[1].origin, "override 'optimizer.momentun=2'");
  EXPECT_EQ(unknown[1].here, "");
  EXPECT_EQ(unknown[1].remedy, "did you mean 'optimizer.momentum'?");
}

TEST(Config, AskingTwiceForAnObjectGivesTheSameReader) {
  const auto config = read(R"({"o": {"a": 1, "b": 2}, "stages": [{}]})");
  config_value<int64_t>(config.get_object("o"), "a");
  config_value<int64_t>(config.get_object("o"), "b");
  EXPECT_EQ(stages_of(config).size(), 1U);
  EXPECT_EQ(stages_of(config).size(), 1U);
  EXPECT_NO_THROW(config.finish());
}

TEST(Config, NamesWhatAKeyIsCalledHere) {
  const ForeignKey foreign[] = {{"learning_rate", "o.lr"}};
  const auto finish = [&](std::string_view text) {
    const auto config = read(text);
    config_value<double>(config.get_object("o"), "lr");
    config_value<int64_t>(config, "rows");
    config.finish(foreign);
  };
  expect_error(
      [&] { finish(R"({"o": {"learning_rate": 1}})"); },
      {"c.json: o.learning_rate is not a known key; use 'o.lr'"});
  // Also without a table where another object has a key of that name.
  expect_error(
      [&] { finish(R"({"lr": 1})"); },
      {"lr is not a known key; did you mean 'o.lr'?"});
  expect_error(
      [&] { finish(R"({"o": {"rows": 1}})"); },
      {"o.rows is not a known key; did you mean 'rows'?"});
  // The key itself is no remedy: another task has it.
  const ForeignKey local[] = {{"size", "o.size"}};
  const auto config = read(R"({"o": {"size": 1}})");
  config_value<double>(config.get_object("o"), "lr");
  expect_error(
      [&] { config.finish(local); },
      {"c.json: o.size is not a known key; known keys: lr"});
}

TEST(Config, SuggestsTheKeyThatBeginsWithTheWord) {
  const auto config = read(R"({"data": {"context": "c"}})");
  config_value<std::string>(config.get_object("data"), "context_key");
  config_value<std::string>(config.get_object("data"), "train");
  expect_error(
      [&] { config.finish(); },
      {"c.json: data.context is not a known key; did you mean 'data.context_key'?"});
}

TEST(Config, FailSaysWhereAndWhat) {
  const auto config = read(R"({"o": {"length": 700}})");
  expect_error(
      [&] { config.get_object("o").fail("length", "expected at most 512"); },
      {"c.json: o.length is 700; expected at most 512"});
}

TEST(Config, ResolvedHoldsWhatWasReadInThatOrder) {
  const auto config = read(
      R"({"o": {"a": 1}, "seed": 3, "stages": [{"layers": 2}], "x": null})");
  config_value<int64_t>(config, "seed");
  config_value<double>(config.get_object("o"), "lr", 0.5);
  config_value<int64_t>(config.get_object("o"), "a");
  stages_of(config);
  config_value<Strings>(config, "files", {"f"});
  EXPECT_FALSE(config.contains("x"));
  EXPECT_EQ(
      config.resolved().dump(),
      R"({"seed":3,"o":{"lr":0.5,"a":1},"stages":[{"layers":2}],"files":["f"]})");
  config.get_object("o").resolve("lr", 0.25);
  EXPECT_EQ(config.resolved()["o"].dump(), R"({"lr":0.25,"a":1})");
}

TEST(Config, KnowsWhatOthersCallAChoice) {
  expect_error(
      [] { get_device(read(R"({"device": "gpu"})")); },
      {"did you mean \"cuda\"?"});
  expect_error(
      [] { get_device(read(R"({"device": "half"})")); },
      {"expected one of \"cpu\", \"cuda\""});
}

TEST(Config, ReadsSizesInBytes) {
  const auto bytes_in = [](const ConfigReader& config) {
    int64_t bytes = 0;
    config.read([&](OptionFields& fields) { fields.bytes("b", bytes, 1, ""); });
    return bytes;
  };
  const auto bytes = [&](const std::string& value) {
    return bytes_in(read("{\"b\": " + value + "}"));
  };
  EXPECT_EQ(bytes("1024"), 1024);
  EXPECT_EQ(bytes("\"11GB\""), 11'000'000'000);
  EXPECT_EQ(bytes("\"11GiB\""), int64_t{11} << 30);
  EXPECT_EQ(bytes("\"1.5 kib\""), 1536);
  EXPECT_EQ(bytes("\"2MB\""), 2'000'000);
  for (const char* wrong :
       {"\"11GX\"",
        "\"GB\"",
        "\"\"",
        "\"12\"",
        "\"-1GB\"",
        "0",
        "1.5",
        "\"0GB\"",
        "\"99999999999TB\"",
        "\"1e3GB\"",
        "true"}) {
    expect_error([&] { bytes(wrong); }, {"b is", "\"11GiB\""});
  }
  const auto config = read(R"({"b": "1KiB"})");
  bytes_in(config);
  EXPECT_EQ(config.resolved().at("b"), 1024);
}

TEST(Config, ReadsOneStringOrSeveral) {
  const auto config = read(R"({"one": "a", "two": ["a", "b"], "no": 3})");
  const auto strings = [&](OptionKey key, Strings value = {}) {
    config.read(
        [&](OptionFields& fields) { fields.one_or_many(key, value, ""); });
    return value;
  };
  EXPECT_EQ(strings("one"), Strings{"a"});
  EXPECT_EQ(strings("two"), (Strings{"a", "b"}));
  EXPECT_EQ(strings("absent", {"x"}), Strings{"x"});
  EXPECT_EQ(config.resolved().at("one"), "a");
  EXPECT_EQ(config.resolved().at("absent"), "x");
  expect_error(
      [&] { strings("no"); }, {"no is 3", "a string, or an array of strings"});
  expect_error(
      [&] { strings(required("none")); },
      {"none is missing", "a string, or an array of strings"});
}

// As on the command line: "model.classes=".
TEST(Config, AnEmptyStringClearsArraysAndMaps) {
  const auto config = read(
      R"({"classes": "", "weights": "", "stages": "", "steps": "", "none": ""})");
  EXPECT_EQ(config_value<Strings>(config, "classes", {"a"}), Strings());
  using Weights = std::map<std::string, double>;
  EXPECT_EQ(config_value<Weights>(config, "weights", {{"a", 1}}), Weights());
  EXPECT_TRUE(stages_of(config).empty());
  EXPECT_EQ(
      config.resolved().dump(), R"({"classes":[],"weights":{},"stages":[]})");
  expect_error(
      [&] { config_value<int64_t>(config, "steps"); },
      {"steps is the string \"\"; expected an integer; steps=null clears it"});
  expect_error(
      [&] { config_value<Strings>(config, required("none")); },
      {"none is the string \"\"; expected an array, each element a string"});
}

} // namespace tessera::runtime::config_test
