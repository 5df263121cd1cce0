// SPDX-License-Identifier: Apache-2.0
// One list of fields: reading, checks, the schema and the table.
#include "tessera/runtime/core/option_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/json_schema.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_check.h"
#include "tessera/runtime/core/option_schema.h"

namespace tessera::runtime::option_fields_test {

enum class Color { kRed, kBlue };

struct Part {
  std::string name;
  std::optional<double> weight;
};

struct Options {
  bool flag = false;
  int count = 1;
  std::optional<int64_t> steps;
  double rate = 0.5;
  std::optional<double> ratio;
  int64_t room = 100;
  std::string text = "a";
  std::filesystem::path path;
  std::vector<std::string> names{"x"};
  std::vector<std::string> keys{"text"};
  std::string pattern;
  std::vector<std::string> listed;
  std::map<std::string, int64_t> counts;
  std::map<std::string, double> rates;
  std::vector<int64_t> sizes;
  double first = 0.1;
  double second = 0.2;
  double x = 1;
  double y = 2;
  double z = 3;
  Color color = Color::kRed;
  std::optional<Color> other; ///< "auto": none
  int64_t shade = 3; ///< of blue
  Part part{"p", {}};
  std::optional<Part> extra;
  std::vector<Part> parts;
};

void visit_fields(OptionFields& fields, Part& part) {
  fields.field(required("name"), part.name, "the name");
  fields.field("weight", part.weight, {.min = 0}, "the weight");
}

void visit_fields(OptionFields& fields, Options& options) {
  fields.field("flag", options.flag, "a flag");
  fields.field("count", options.count, {.min = 1, .max = 9}, "a count");
  fields.field("steps", options.steps, {.min = 0}, "steps");
  fields.field(
      "rate", options.rate, {.min = 0, .max = 1, .open_max = true}, "a rate");
  fields.field(
      "ratio",
      options.ratio,
      {.min = 0, .max = 1},
      "part of `x`; more",
      "auto");
  fields.bytes("room", options.room, 1, "bytes");
  fields.field("text", options.text, "text");
  fields.field("path", options.path, "a path");
  fields.field("names", options.names, "names");
  fields.one_or_many("keys", options.keys, "keys");
  fields.one_or_array(
      "which", options.pattern, options.listed, "a pattern, or names");
  fields.field("counts", options.counts, {.min = 1}, "counts by name");
  fields.field("rates", options.rates, {.max = 1}, "rates by name");
  fields.field("sizes", options.sizes, {.min = 1}, "sizes");
  fields.pair("both", options.first, options.second, {.min = 0}, "both");
  fields.triple(
      "all", options.x, options.y, options.z, {.min = 0}, "all three");
  const auto color = fields.choice(
      "color",
      options.color,
      {{"red", Color::kRed}, {"blue", Color::kBlue}},
      "a color");
  fields.when(color, {"blue"}, [&] {
    fields.field("shade", options.shade, {.min = 1}, "the shade");
  });
  fields.choice(
      "other",
      options.other,
      {{"red", Color::kRed}, {"auto", std::nullopt}},
      "another");
  fields.object("extra", options.extra, "one more");
  fields.objects("parts", options.parts, "parts");
}

namespace {

ConfigReader reader_of(const std::string& text) {
  return {parse_json(text, "c.json"), "c.json"};
}

Options read(const std::string& text) {
  const ConfigReader reader = reader_of(text);
  Options options;
  read_fields(reader, options);
  reader.finish();
  return options;
}

OptionDescription described() {
  Options defaults;
  return describe_list(list_of(defaults));
}

} // namespace

TEST(OptionFields, ReadsEveryKind) {
  const Options options = read(R"({
    "flag": true, "count": 2, "steps": 7, "rate": 0.25, "ratio": 1,
    "room": "1KiB", "text": "b", "path": "/tmp", "names": ["y", "z"],
    "keys": "k", "which": "x.*", "counts": {"a.b": 2, "c": 3},
    "rates": {"x|y": 0.5}, "sizes": [4], "both": [1, 2],
    "all": [4, 5, 6], "color": "blue", "shade": 5,
    "other": "red", "extra": {"name": "e"},
    "parts": [{"name": "one"}, {"name": "two", "weight": 2}]
})");
  EXPECT_TRUE(options.flag);
  EXPECT_EQ(options.count, 2);
  EXPECT_EQ(options.steps, 7);
  EXPECT_EQ(options.rate, 0.25);
  EXPECT_EQ(options.ratio, 1.0);
  EXPECT_EQ(options.room, 1024);
  EXPECT_EQ(options.text, "b");
  EXPECT_EQ(options.path, "/tmp");
  EXPECT_EQ(options.names, (std::vector<std::string>{"y", "z"}));
  EXPECT_EQ(options.keys, std::vector<std::string>{"k"});
  EXPECT_EQ(options.pattern, "x.*");
  EXPECT_TRUE(options.listed.empty());
  EXPECT_EQ(
      options.counts, (std::map<std::string, int64_t>{{"a.b", 2}, {"c", 3}}));
  EXPECT_EQ(options.rates, (std::map<std::string, double>{{"x|y", 0.5}}));
  EXPECT_EQ(options.sizes, std::vector<int64_t>{4});
  EXPECT_EQ(options.first, 1.0);
  EXPECT_EQ(options.x, 4.0);
  EXPECT_EQ(options.y, 5.0);
  EXPECT_EQ(options.z, 6.0);
  EXPECT_EQ(options.second, 2.0);
  EXPECT_EQ(options.color, Color::kBlue);
  EXPECT_EQ(options.shade, 5);
  EXPECT_EQ(options.other, Color::kRed);
  ASSERT_TRUE(options.extra);
  EXPECT_EQ(options.extra->name, "e");
  ASSERT_EQ(options.parts.size(), 2u);
  EXPECT_EQ(options.parts[0].weight, std::nullopt);
  EXPECT_EQ(options.parts[1].weight, 2.0);
}

TEST(OptionFields, AnEmptyStringIsAnEmptyArray) {
  // So that `data.metric=` clears what a file sets.
  EXPECT_TRUE(read(R"({"count": 2, "keys": ""})").keys.empty());
}

TEST(OptionFields, AStringIsNoArrayOfItWhereTheyDiffer) {
  const ConfigReader reader = reader_of(R"({"which": ["x"]})");
  Options options;
  options.pattern = "y";
  read_fields(reader, options);
  EXPECT_EQ(options.pattern, "");
  EXPECT_EQ(options.listed, std::vector<std::string>{"x"});
  EXPECT_EQ(reader.resolved()["which"].dump(), R"(["x"])");
  // What is resolved reads as the same.
  const ConfigReader again = reader_of("{}");
  read_fields(again, options);
  EXPECT_EQ(again.resolved()["which"].dump(), R"(["x"])");
  options.pattern = "y";
  read_fields(again, options);
  EXPECT_EQ(again.resolved()["which"].dump(), R"("y")");
  expect_error(
      [] { read(R"({"which": 3})"); },
      {"which is 3; expected a string, or an array of strings"});
}

TEST(OptionFields, ChecksOfWhatWasReadNameTheFileOrTheOverride) {
  const ConfigReader reader(
      parse_json(R"({"extra": {"name": "e"}})", "c.json"),
      "c.json",
      std::vector<std::string>{"extra.weight=2"});
  const auto fails = [](const char* message) {
    return [message] { TESSERA_FAIL("{}", message); };
  };
  EXPECT_EQ(
      error_of([&] { reader.run_check(fails("extra.name is e; no")); }),
      "c.json: extra.name is e; no");
  EXPECT_EQ(
      error_of([&] { reader.run_check(fails("extra.weight: no")); }),
      "override 'extra.weight=2': extra.weight: no");
}

TEST(OptionFields, AbsentKeysKeepTheirValuesAndOptionalOnesStayAbsent) {
  const ConfigReader reader = reader_of("{}");
  Options options;
  options.count = 4;
  options.other = Color::kRed;
  read_fields(reader, options);
  EXPECT_EQ(options.count, 4);
  EXPECT_EQ(options.other, Color::kRed);
  EXPECT_EQ(options.steps, std::nullopt);
  EXPECT_EQ(options.extra.has_value(), false);
  EXPECT_EQ(
      reader.resolved().dump(),
      R"({"flag":false,"count":4,"rate":0.5,"ratio":"auto","room":100,)"
      R"("text":"a","path":"","names":["x"],"keys":"text","which":[],"counts":{},"rates":{},"sizes":[],)"
      R"("both":[0.1,0.2],"all":[1.0,2.0,3.0],"color":"red","other":"red","parts":[]})");
  EXPECT_EQ(read(R"({"other": "auto"})").other, std::nullopt);
  EXPECT_EQ(read(R"({"ratio": "auto"})").ratio, std::nullopt);
}

TEST(OptionFields, ProgramsAndFilesGetTheSameErrors) {
  struct Case {
    const char* text;
    void (*set)(Options& options);
    const char* message;
  };
  const Case cases[] = {
      {R"({"count": 0})",
       [](Options& options) { options.count = 0; },
       "count is 0; expected an integer from 1 to 9"},
      {R"({"steps": -1})",
       [](Options& options) { options.steps = -1; },
       "steps is -1; expected an integer of at least 0"},
      {R"({"rate": 1.5})",
       [](Options& options) { options.rate = 1.5; },
       "rate is 1.5; expected a number of at least 0 and less than 1"},
      {R"({"ratio": 2.5})",
       [](Options& options) { options.ratio = 2.5; },
       "ratio is 2.5; expected a number from 0 to 1"},
      {R"({"room": 0})",
       [](Options& options) { options.room = 0; },
       "room is 0; expected an integer of at least 1"},
      {R"({"sizes": [1, 0]})",
       [](Options& options) {
         options.sizes = {1, 0};
       },
       "sizes.1 is 0; expected an integer of at least 1"},
      {R"({"counts": {"a.b": 0}})",
       [](Options& options) { options.counts["a.b"] = 0; },
       "counts.a.b is 0; expected an integer of at least 1"},
      {R"({"both": [0, -0.5]})",
       [](Options& options) { options.second = -0.5; },
       "both.1 is -0.5; expected a number of at least 0"},
      {R"({"extra": {"name": "e", "weight": -2.5}})",
       [](Options& options) {
         options.extra = {"e", -2.5};
       },
       "extra.weight is -2.5; expected a number of at least 0"},
      {R"({"parts": [{"name": "e", "weight": -2.5}]})",
       [](Options& options) {
         options.parts = {{"e", -2.5}};
       },
       "parts.0.weight is -2.5; expected a number of at least 0"},
  };
  for (const Case& bad : cases) {
    // What the field is follows in both.
    const std::string message = bad.message;
    const std::string from_file = error_of([&] { read(bad.text); });
    EXPECT_EQ(from_file.rfind("c.json: " + message, 0), 0u) << from_file;
    Options options;
    bad.set(options);
    const std::string checked = error_of([&] { check_fields("", options); });
    EXPECT_EQ(checked.rfind(message, 0), 0u) << checked;
    const size_t end = checked.rfind(": ");
    ASSERT_NE(end, std::string::npos) << checked;
    EXPECT_TRUE(from_file.ends_with(checked.substr(end))) << from_file;
    EXPECT_EQ(
        error_of([&] { check_fields("section", options); }),
        "section." + checked);
  }
  EXPECT_NO_THROW(check_fields("", Options()));
}

TEST(OptionFields, ProgramsCanNotSetWhatNoFileCan) {
  Options options;
  options.rate = std::numeric_limits<double>::quiet_NaN();
  expect_error([&] { check_fields("", options); }, {"rate is nan", "finite"});
  options = {};
  options.extra = {"e", std::numeric_limits<double>::infinity()};
  expect_error(
      [&] { check_fields("", options); }, {"extra.weight is inf", "finite"});
  options = {};
  options.color = static_cast<Color>(7);
  expect_error(
      [&] { check_fields("", options); },
      {"color is value 7; expected one of red, blue: a color"});
  options = {};
  options.other = Color::kBlue;
  expect_error(
      [&] { check_fields("", options); },
      {"other is value 1; expected one of red, auto: another"});
  options = {};
  options.ratio = 2;
  expect_error(
      [&] { check_fields("", options); },
      {"ratio is 2; expected a number from 0 to 1, or no value (\"auto\"): part of x"});
}

TEST(OptionFields, KeysOfOtherChoicesAreUnknown) {
  expect_error([] { read(R"({"shade": 2})"); }, {"shade is not a known key"});
  expect_error([] { read(R"({"color": "red", "shade": 2})"); }, {"shade"});
  Options options;
  options.shade = 0; // not used
  EXPECT_NO_THROW(check_fields("", options));
  options.color = Color::kBlue;
  expect_error([&] { check_fields("", options); }, {"shade is 0"});
}

TEST(OptionFields, RequiredKeysAndCounts) {
  expect_error([] { read(R"({"extra": {}})"); }, {"extra.name is missing"});
  expect_error([] { read(R"({"parts": [{}]})"); }, {"parts.0.name is missing"});
  expect_error([] { read(R"({"both": [1]})"); }, {"both", "two numbers"});
  expect_error([] { read(R"({"all": [1, 2]})"); }, {"all", "three numbers"});
  expect_error(
      [] { read(R"({"count": 4294967297})"); }, {"count is 4294967297"});
}

// Each fits the schema if and only if it can be read.
TEST(OptionFields, TheSchemaAcceptsWhatCanBeRead) {
  const tests::JsonSchema schema(described().schema);
  const std::pair<const char*, bool> texts[] = {
      {R"({})", true},
      {R"({"flag": true, "count": 9, "steps": null, "rate": 0})", true},
      {R"({"flag": 1})", false},
      {R"({"count": 10})", false},
      {R"({"count": 1.5})", false},
      {R"({"rate": 1})", false},
      {R"({"rate": "0"})", false},
      {R"({"ratio": "auto"})", true},
      {R"({"ratio": "aut"})", false},
      {R"({"ratio": 1.5})", false},
      {R"({"room": "11GB"})", true},
      {R"({"room": "1.5 MiB"})", true},
      {R"({"room": "11 apples"})", false},
      {R"({"room": 0})", false},
      {R"({"names": "x"})", false},
      {R"({"keys": "x"})", true},
      {R"({"keys": ["x", "y"]})", true},
      {R"({"keys": [1]})", false},
      {R"({"which": "x"})", true},
      {R"({"which": ["x", "y"]})", true},
      {R"({"which": {}})", false},
      {R"({"counts": {"x.*": 1}})", true},
      {R"({"counts": {"x": 0}})", false},
      {R"({"counts": [1]})", false},
      {R"({"rates": {"x": 2}})", false},
      {R"({"sizes": [0]})", false},
      {R"({"both": [1]})", false},
      {R"({"both": [1, 2]})", true},
      {R"({"all": [1, 2]})", false},
      {R"({"all": [1, 2, 3]})", true},
      {R"({"all": [1, 2, -3]})", false},
      {R"({"color": "green"})", false},
      {R"({"color": "blue", "shade": 1})", true},
      {R"({"color": "blue", "shade": 0})", false},
      {R"({"color": "red", "shade": 1})", false},
      {R"({"shade": 1})", false},
      {R"({"other": "auto"})", true},
      {R"({"extra": {}})", false},
      {R"({"extra": {"name": "e", "weight": 0}})", true},
      {R"({"extra": {"name": "e", "wait": 0}})", false},
      {R"({"parts": [{"name": "e"}, {}]})", false},
      {R"({"parts": {}})", false},
      {R"({"unknown": 1})", false},
  };
  for (const auto& [text, fits] : texts) {
    EXPECT_EQ(schema.accepts(nlohmann::ordered_json::parse(text)), fits)
        << text;
    EXPECT_EQ(error_of([&] { read(text); }).empty(), fits) << text;
  }
}

TEST(OptionFields, TheSchemaHasDefaultsAndDocumentation) {
  const auto schema = described().schema;
  EXPECT_EQ(
      schema["properties"]["count"].dump(),
      R"({"type":["integer","null"],"minimum":1,"maximum":9,)"
      R"("description":"a count","default":1})");
  EXPECT_EQ(schema["properties"]["ratio"]["default"], "auto");
  EXPECT_FALSE(schema["properties"]["steps"].contains("default"));
  EXPECT_EQ(schema["properties"]["keys"]["default"], "text");
}

TEST(OptionFields, TheTableHasARowPerKey) {
  const std::string table = markdown_table(described().rows);
  for (const char* row : {
           "| `count` | an integer from 1 to 9 | `1` | a count |\n",
           "| `steps` | an integer of at least 0 | | steps |\n",
           "| `which` | a string, or an array of strings | `[]` | a pattern, "
           "or names |\n",
           "| `counts` | an object, each value an integer of at least 1 | `{}` "
           "| counts by name |\n",
           "| `color` | `red`, `blue` | `\"red\"` | a color |\n",
           "| `shade` | an integer of at least 1 | `3` | `blue`: the shade |\n",
           "| `all` | three numbers, each a number of at least 0 | "
           "`[1.0,2.0,3.0]` | all three |\n",
           "| `extra` | an object | | one more |\n",
           "| `parts[].name` | a string | | the name |\n",
       }) {
    EXPECT_NE(table.find(row), std::string::npos) << row << "\n" << table;
  }
}

TEST(OptionFields, RowsOfOneKeyBecomeOne) {
  const std::vector<OptionRow> rows{
      {"a.eps", "a number", "1", "small", {"adam"}},
      {"b", "a string", "", "between", {}},
      {"a.eps", "a number", "2", "small", {"lamb"}},
      {"a.eps", "a number", "1", "small", {"muon"}},
      {"a.rate", "a number", "1", "of x", {"adam"}},
      {"a.rate", "a number", "1", "of y", {"lamb"}}};
  EXPECT_EQ(
      markdown_table(rows),
      "| key | values | default | meaning |\n| --- | --- | --- | --- |\n"
      "| `a.eps` | a number | `adam`, `muon`: `1`; `lamb`: `2` | "
      "`adam`, `lamb`, `muon`: small |\n"
      "| `a.rate` | a number | `1` | `adam`: of x; `lamb`: of y |\n"
      "| `b` | a string | | between |\n");
  EXPECT_EQ(key_list(rows_in(rows, "b")), "b\n    between\n    a string\n");
  EXPECT_EQ(
      key_list(rows_in(rows, "a")),
      "a.eps\n    `adam`, `lamb`, `muon`: small\n    a number\n"
      "    = 1 of `adam`, `muon`\n    = 2 of `lamb`\n"
      "a.rate = 1\n    `adam`: of x; `lamb`: of y\n    a number\n");
  EXPECT_EQ(rows_in(rows, "a.rate").size(), 2u);
  EXPECT_TRUE(rows_in(rows, "a.ra").empty());
  EXPECT_EQ(rows_in(rows, ""), rows);
}

TEST(OptionFields, SectionsHaveSchemas) {
  const auto schema = described().schema;
  EXPECT_EQ(schemas_at(schema, ""), std::vector{schema});
  EXPECT_EQ(
      schemas_at(schema, "extra"), std::vector{schema["properties"]["extra"]});
  EXPECT_EQ(
      schemas_at(schema, "parts[].name"),
      std::vector{
          schema["properties"]["parts"]["items"]["properties"]["name"]});
  const auto shade = schemas_at(schema, "shade"); // of a branch
  ASSERT_EQ(shade.size(), 1u);
  EXPECT_EQ(shade[0]["default"], 3);
  EXPECT_TRUE(schemas_at(schema, "parts.name").empty());
  EXPECT_TRUE(schemas_at(schema, "nothing").empty());
}

// An object that cannot be empty cannot be absent, unless that means something.
TEST(OptionFields, ObjectsWithRequiredKeysAreRequired) {
  struct Outer {
    Part part;
    std::optional<Part> extra;
  };
  Outer outer;
  const auto schema = describe_list([&](OptionFields& fields) {
                        fields.object("part", outer.part, "a part");
                        fields.object("extra", outer.extra, "one more");
                      }).schema;
  EXPECT_EQ(schema["required"].dump(), R"(["part"])");
}

} // namespace tessera::runtime::option_fields_test
