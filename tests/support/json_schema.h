// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JsonSchema` decides whether a JSON value fits a schema, for the keywords
// that OptionSchema writes.

#include <nlohmann/json.hpp>

#include <algorithm>
#include <regex>
#include <set>
#include <string>

namespace tessera::tests {

class JsonSchema {
 public:
  using Json = nlohmann::ordered_json;

  explicit JsonSchema(Json root) : root_(std::move(root)) {}

  bool accepts(const Json& value) const {
    std::set<std::string> known;
    return accepts(root_, value, known);
  }

 private:
  /// @param known receives the keys of `value` that the schema describes.
  bool accepts(
      const Json& schema,
      const Json& value,
      std::set<std::string>& known) const {
    if (schema.contains("$ref")) {
      const std::string path = schema["$ref"];
      return accepts(
          root_.at(Json::json_pointer(path.substr(1))), value, known);
    }
    if (!has_type(schema, value) || !in_range(schema, value)) {
      return false;
    }
    if (schema.contains("not")) {
      std::set<std::string> ignored;
      if (accepts(schema["not"], value, ignored)) {
        return false;
      }
    }
    if (schema.contains("anyOf")) {
      const Json& ways = schema["anyOf"];
      return std::any_of(ways.begin(), ways.end(), [&](const Json& way) {
        std::set<std::string> inner;
        return accepts(way, value, inner);
      });
    }
    if (schema.contains("enum")) {
      const auto& names = schema["enum"];
      if (std::find(names.begin(), names.end(), value) == names.end()) {
        return false;
      }
    }
    if (schema.contains("const") && schema["const"] != value) {
      return false;
    }
    if (value.is_array()) {
      return elements_fit(schema, value);
    }
    return !value.is_object() || keys_fit(schema, value, known);
  }

  static bool is_type(const std::string& type, const Json& value) {
    return type == "number"    ? value.is_number()
           : type == "integer" ? value.is_number_integer()
                               : type == value.type_name();
  }

  static bool has_type(const Json& schema, const Json& value) {
    if (!schema.contains("type")) {
      return true;
    }
    const Json& type = schema["type"];
    return type.is_string()
               ? is_type(type, value)
               : std::any_of(type.begin(), type.end(), [&](const Json& one) {
                   return is_type(one, value);
                 });
  }

  static bool in_range(const Json& schema, const Json& value) {
    if (value.is_string() && schema.contains("pattern")) {
      return std::regex_search(
          value.get<std::string>(),
          std::regex(schema["pattern"].get<std::string>()));
    }
    const auto holds = [&](const char* keyword, const auto& compare) {
      return !value.is_number() || !schema.contains(keyword) ||
             compare(value.get<double>(), schema[keyword].get<double>());
    };
    return holds("minimum", std::greater_equal<>()) &&
           holds("maximum", std::less_equal<>()) &&
           holds("exclusiveMinimum", std::greater<>()) &&
           holds("exclusiveMaximum", std::less<>());
  }

  bool elements_fit(const Json& schema, const Json& value) const {
    return value.size() >= schema.value("minItems", size_t{0}) &&
           value.size() <= schema.value("maxItems", value.size()) &&
           std::all_of(value.begin(), value.end(), [&](const Json& element) {
             std::set<std::string> inner;
             return !schema.contains("items") ||
                    accepts(schema["items"], element, inner);
           });
  }

  bool keys_fit(
      const Json& schema,
      const Json& value,
      std::set<std::string>& known) const {
    for (const Json& key : schema.value("required", Json::array())) {
      if (!value.contains(key.get<std::string>())) {
        return false;
      }
    }
    const Json properties = schema.value("properties", Json::object());
    for (const auto& [key, property] : properties.items()) {
      std::set<std::string> inner;
      known.insert(key);
      if (value.contains(key) && !accepts(property, value[key], inner)) {
        return false;
      }
    }
    for (const Json& branch : schema.value("allOf", Json::array())) {
      std::set<std::string> ignored;
      if (accepts(branch["if"], value, ignored) &&
          !accepts(branch["then"], value, known)) {
        return false;
      }
    }
    if (!schema.contains("additionalProperties") &&
        !schema.contains("unevaluatedProperties")) {
      return true;
    }
    const Json others = schema.value("additionalProperties", Json(false));
    return std::all_of(
        value.items().begin(), value.items().end(), [&](const auto& item) {
          std::set<std::string> inner;
          return known.count(item.key()) > 0 ||
                 (others != false && accepts(others, item.value(), inner));
        });
  }

  Json root_;
};

} // namespace tessera::tests
