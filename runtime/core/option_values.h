// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values of options as JSON; null is none. For option_*.cpp only.

#include <nlohmann/json.hpp>
#include <optional>

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

} // namespace tessera::runtime
