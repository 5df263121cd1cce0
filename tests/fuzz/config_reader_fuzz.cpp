// SPDX-License-Identifier: Apache-2.0
// A configuration of any bytes, with overrides in lines behind a line "====".

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::fuzz_config_reader {
namespace {

struct Anything {};

void visit_fields(runtime::OptionFields& fields, Anything& /*object*/) {
  fields.group("o", "", [] {});
}

/// A field of every kind asks for every key, and refuses what it does not take.
void read_all(
    const runtime::ConfigReader& reader,
    const nlohmann::json& object) {
  using Field = std::function<void(runtime::OptionFields&, const char*)>;
  struct Values {
    bool flag = false;
    int64_t integer = 1;
    double number = 1;
    std::optional<double> automatic;
    std::string text;
    std::string pattern;
    int choice = 1;
    std::vector<std::string> texts;
    std::vector<int64_t> integers;
    std::vector<double> numbers;
    std::map<std::string, double> map;
    std::vector<Anything> objects;
  } values;
  const Field kinds[] = {
      [&](auto& fields, auto key) { fields.field(key, values.text, ""); },
      [&](auto& fields, auto key) { fields.field(key, values.flag, ""); },
      [&](auto& fields, auto key) {
        fields.field(key, values.integer, {.min = 1, .max = 100}, "");
      },
      [&](auto& fields, auto key) { fields.bytes(key, values.integer, 1, ""); },
      [&](auto& fields, auto key) {
        fields.field(key, values.number, {.min = 0, .open_min = true}, "");
      },
      [&](auto& fields, auto key) {
        fields.field(key, values.automatic, {}, "", "auto");
      },
      [&](auto& fields, auto key) {
        fields.choice(key, values.choice, {{"adamw", 1}, {"linear", 2}}, "");
      },
      [&](auto& fields, auto key) { fields.field(key, values.texts, ""); },
      [&](auto& fields, auto key) {
        fields.one_or_many(key, values.texts, "");
      },
      [&](auto& fields, auto key) {
        values.texts.clear();
        fields.one_or_array(key, values.pattern, values.texts, "");
      },
      [&](auto& fields, auto key) {
        fields.field(key, values.integers, {.min = 0}, "");
      },
      [&](auto& fields, auto key) {
        fields.pair(key, values.number, values.number, {}, "");
      },
      [&](auto& fields, auto key) {
        fields.field(key, values.numbers, {}, "");
      },
      [&](auto& fields, auto key) { fields.field(key, values.map, {}, ""); },
      [&](auto& fields, auto key) { fields.objects(key, values.objects, ""); }};
  for (const auto& item : object.items()) {
    const char* const key = item.key().c_str();
    for (const Field& kind : kinds) {
      try {
        reader.read([&](runtime::OptionFields& fields) { kind(fields, key); });
      } catch (const Error&) {
      }
    }
    try {
      read_all(reader.get_object(item.key()), item.value());
    } catch (const Error&) {
    }
  }
}

} // namespace

TESSERA_FUZZ_TARGET(config_reader) {
  std::string_view text = input;
  std::vector<std::string> overrides;
  const size_t end = text.find("\n====\n");
  if (end != std::string_view::npos) {
    std::string_view lines = text.substr(end + 6);
    text = text.substr(0, end);
    while (!lines.empty()) {
      const size_t next = std::min(lines.find('\n'), lines.size() - 1) + 1;
      overrides.emplace_back(lines.substr(0, next - 1));
      lines.remove_prefix(next);
    }
  }
  try {
    nlohmann::json root = runtime::parse_json(text, "config.json");
    const runtime::ConfigReader reader(root, "config.json", overrides);
    for (const std::string& one : overrides) {
      runtime::apply_override(root, one);
    }
    read_all(reader, root);
    reader.finish();
    reader.resolved().dump();
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_config_reader
