// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "tessera/runtime/core/json_text.h"

namespace tessera::runtime::config_test {

namespace {

enum class Device { kCpu, kCuda };

ConfigReader read(std::string_view text) {
  return {parse_json(text, "c.json"), "c.json"};
}

Device get_device(
    const ConfigReader& config,
    std::optional<Device> fallback = {}) {
  return config.get_enum<Device>(
      "device", {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}}, fallback);
}

} // namespace

TEST(Config, ReadsEveryKind) {
  const auto config = read(R"({
    "name": "x", "shuffle": true, "steps": 3, "lr": 1, "device": "cuda",
    "files": ["a", "b"], "sizes": [1, -2], "betas": [0.9, 1],
    "optimizer": {"eps": 1e-8}, "stages": [{"layers": 2}, {"layers": 3}]
  })");
  EXPECT_EQ(config.get_string("name"), "x");
  EXPECT_EQ(config.get_bool("shuffle"), true);
  EXPECT_EQ(config.get_int("steps"), 3);
  EXPECT_EQ(config.get_double("lr"), 1.0);
  EXPECT_EQ(get_device(config), Device::kCuda);
  EXPECT_EQ(config.get_strings("files"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(config.get_ints("sizes"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(config.get_doubles("betas"), (std::vector<double>{0.9, 1}));
  EXPECT_EQ(config.get_object("optimizer").get_double("eps"), 1e-8);
  const auto stages = config.get_objects("stages");
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[1].get_int("layers"), 3);
  EXPECT_EQ(stages[0].get_int("layers"), 2);
  EXPECT_NO_THROW(config.finish());
}

TEST(Config, AbsentAndNullKeysTakeTheFallback) {
  const auto config = read(R"({"steps": null, "optimizer": null})");
  EXPECT_EQ(config.get_int("steps", {.min = 1}, 7), 7);
  EXPECT_EQ(config.get_string("name", "y"), "y");
  EXPECT_EQ(config.get_bool("shuffle", false), false);
  EXPECT_EQ(config.get_double("lr", {}, 0.5), 0.5);
  EXPECT_EQ(get_device(config, Device::kCpu), Device::kCpu);
  EXPECT_TRUE(config.get_strings("files", {{}}).empty());
  EXPECT_EQ(config.get_object("optimizer").get_double("lr", {}, 0.1), 0.1);
  EXPECT_EQ(config.get_object("data").get_int("seed", {}, 1), 1);
  EXPECT_TRUE(config.get_objects("stages").empty());
  EXPECT_FALSE(config.contains("steps"));
  EXPECT_NO_THROW(config.finish());
}

TEST(Config, MissingKeysNameThePathAndWhatIsExpected) {
  expect_error(
      [] { read("{}").get_int("steps", {.min = 1}); },
      {"c.json: steps is missing", "an integer of at least 1"});
  expect_error(
      [] { read("{}").get_object("optimizer").get_double("lr"); },
      {"c.json: optimizer.lr is missing", "a number"});
  expect_error([] { get_device(read("{}")); }, {"one of \"cpu\", \"cuda\""});
  expect_error(
      [] { read(R"({"learning_rat": 1})").get_double("learning_rate"); },
      {"learning_rate is missing", "'learning_rat'"});
}

TEST(Config, AKeyThatIsMissingFromAnObjectOfOverridesIsTheirs) {
  const auto name_of = [](const char* text, const std::string& override_text) {
    const std::vector<std::string> overrides{override_text};
    ConfigReader(nlohmann::json::parse(text), "c.json", overrides)
        .get_object("model")
        .get_object("lora")
        .get_string("name");
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
      [&] { o.get_double("lr"); },
      {"c.json: o.lr is the string \"fast\"; expected a number"});
  expect_error(
      [&] { o.get_int("steps"); },
      {"c.json: o.steps is 1000.0; expected an integer"});
  expect_error(
      [&] { o.get_bool("shuffle"); },
      {"c.json: o.shuffle is 1; expected true or false"});
  expect_error(
      [&] { o.get_string("name"); },
      {"c.json: o.name is the array [1]; expected a string"});
  expect_error([&] { config.get_int("big"); }, {"big is 9223372036854775808"});
  expect_error(
      [&] { config.get_strings("files"); },
      {"c.json: files.1 is 3; expected a string"});
  expect_error(
      [&] { config.get_ints("list"); },
      {"list is the object {}; expected an array, each element an integer"});
  expect_error(
      [&] { config.get_object("files"); },
      {"files is the array [\"a\",3]; expected an object"});
  expect_error([&] { config.get_objects("l"); }, {"l.1 is 1"});
  expect_error([] { read("[1]"); }, {"c.json: ", "[1]", "expected an object"});
}

TEST(Config, RangesAreChecked) {
  const auto config = read(R"({"n": 0, "x": 1.0, "v": [1, 9]})");
  expect_error(
      [&] { config.get_int("n", {.min = 1, .max = 4}); },
      {"n is 0; expected an integer from 1 to 4"});
  expect_error(
      [&] { config.get_int("n", {.max = -1}); },
      {"n is 0; expected an integer of at most -1"});
  EXPECT_EQ(config.get_double("x", {.min = 0, .max = 1}), 1.0);
  expect_error(
      [&] { config.get_double("x", {.min = 0, .max = 1, .open_max = true}); },
      {"x is 1.0; expected a number of at least 0 and less than 1"});
  expect_error(
      [&] { config.get_double("n", {.min = 0, .open_min = true}); },
      {"n is 0; expected a number greater than 0"});
  expect_error(
      [&] { config.get_ints("v", {.max = 8}); }, {"v.1 is 9", "at most 8"});
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
  const auto optimizer = config.get_object("optimizer");
  optimizer.get_double("learning_rate", {}, 0.1);
  expect_error(
      [&] { config.finish(); },
      {"c.json: stages is not a known key; known keys: optimizer"});
  const auto stages = config.get_objects("stages");
  for (const auto& stage : stages) {
    stage.get_int("layers", {}, 1);
  }
  expect_error(
      [&] { config.finish(); },
      {"c.json: optimizer.learning_rat is not a known key",
       "did you mean 'optimizer.learning_rate'?"});
  expect_error(
      [&] { stages[1].finish(); },
      {"stages.1.layrs is not a known key", "'stages.1.layers'"});
}

TEST(Config, AskingTwiceForAnObjectGivesTheSameReader) {
  const auto config = read(R"({"o": {"a": 1, "b": 2}, "l": [{"c": 3}]})");
  config.get_object("o").get_int("a");
  config.get_object("o").get_int("b");
  EXPECT_EQ(config.get_objects("l").size(), 1u);
  config.get_objects("l")[0].get_int("c");
  EXPECT_NO_THROW(config.finish());
}

TEST(Config, NamesWhatAKeyIsCalledHere) {
  const ForeignKey foreign[] = {{"learning_rate", "o.lr"}};
  const auto finish = [&](std::string_view text) {
    const auto config = read(text);
    config.get_object("o").get_double("lr", {}, 1.0);
    config.get_int("rows", {}, 1);
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
  const ForeignKey own[] = {{"size", "o.size"}};
  const auto config = read(R"({"o": {"size": 1}})");
  config.get_object("o").get_double("lr", {}, 1.0);
  expect_error(
      [&] { config.finish(own); },
      {"c.json: o.size is not a known key; known keys: lr"});
}

TEST(Config, SuggestsTheKeyThatBeginsWithTheWord) {
  const auto config = read(R"({"data": {"context": "c"}})");
  config.get_object("data").get_string("context_key", "context");
  config.get_object("data").get_string("train", "");
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
  const auto config =
      read(R"({"o": {"a": 1}, "seed": 3, "l": [{"n": 1}], "x": null})");
  config.get_int("seed");
  config.get_object("o").get_double("lr", {}, 0.5);
  config.get_object("o").get_int("a");
  config.get_objects("l")[0].get_int("n");
  config.get_strings("files", {{"f"}});
  EXPECT_FALSE(config.contains("x"));
  EXPECT_EQ(
      config.resolved().dump(),
      R"({"seed":3,"o":{"lr":0.5,"a":1},"l":[{"n":1}],"files":["f"]})");
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
  const auto bytes = [](const std::string& value) {
    return read("{\"b\": " + value + "}").get_bytes("b", {.min = 1});
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
  config.get_bytes("b");
  EXPECT_EQ(config.resolved().at("b"), 1024);
  EXPECT_EQ(config.get_bytes("c", {}, 5), 5);
}

TEST(Config, ReadsOneStringOrSeveral) {
  using Strings = std::vector<std::string>;
  const auto config = read(R"({"one": "a", "two": ["a", "b"], "no": 3})");
  EXPECT_EQ(config.get_string_or_strings("one", {}), Strings{"a"});
  EXPECT_EQ(config.get_string_or_strings("two", {}), (Strings{"a", "b"}));
  EXPECT_EQ(config.get_string_or_strings("absent", {"x"}), Strings{"x"});
  EXPECT_EQ(config.resolved().at("one"), "a");
  EXPECT_EQ(config.resolved().at("absent"), "x");
  expect_error(
      [&] { config.get_string_or_strings("no", {}); },
      {"no is 3", "a string, or an array of strings"});
}

} // namespace tessera::runtime::config_test
