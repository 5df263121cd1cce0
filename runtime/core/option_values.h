// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values of options as JSON; null is none. For option_*.cpp only.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/runtime/core/option_fields.h"

namespace tessera::runtime {

template <typename Value>
nlohmann::json json_of(const Value& value) {
  return value;
}

template <typename Value>
nlohmann::json json_of(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

template <typename Value>
struct ValueOf {
  static Value get(const nlohmann::json& json) {
    return json.get<Value>();
  }
};

template <typename Value>
struct ValueOf<std::optional<Value>> {
  static std::optional<Value> get(const nlohmann::json& json) {
    return json.is_null() ? std::nullopt : std::optional(json.get<Value>());
  }
};

template <typename Value>
Value value_of(const nlohmann::json& json) {
  return ValueOf<Value>::get(json);
}

/// The end of an error: ": " and what the field is, i.e. its documentation up
/// to a semicolon, without Markdown.
inline std::string explanation(const OptionField& field) {
  std::string_view doc = field.doc;
  doc = doc.substr(0, doc.find(';'));
  std::string text;
  bool is_code = false;
  for (size_t i = 0; i < doc.size(); ++i) {
    if (doc[i] == '`') {
      is_code = !is_code;
    } else if (!is_code && doc.substr(i).starts_with("](")) {
      i = doc.find(')', i); // the target of a link
    } else if (is_code || doc[i] != '[') {
      text += doc[i];
    }
  }
  return text.empty() ? "" : ": " + text;
}

} // namespace tessera::runtime
