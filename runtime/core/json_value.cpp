// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/json_value.h"

#include "tessera/runtime/core/config_values.h"

namespace tessera::runtime {

void JsonValue::fail(const std::string& expected) const {
  TESSERA_FAIL(
      "{} is {}, but must be {}{}",
      place_,
      show_json(*value_),
      expected,
      remedy_);
}

std::optional<JsonValue> JsonValue::find(const std::string& key) const {
  if (!value_->is_object()) {
    fail("an object with '" + key + "'");
  }
  const auto found = value_->find(key);
  if (found == value_->end()) {
    return std::nullopt;
  }
  return nested(*found, place_ + ": '" + key + "'");
}

std::optional<JsonValue> JsonValue::find_set(const std::string& key) const {
  auto found = find(key);
  if (found && found->value_->is_null()) {
    return std::nullopt;
  }
  return found;
}

JsonValue JsonValue::at(const std::string& key) const {
  const auto found = find(key);
  if (!found) {
    fail("an object with '" + key + "'");
  }
  return *found;
}

JsonValue JsonValue::section(const std::string& key) const {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  const auto found = find_set(key);
  if (!found) {
    return nested(kEmpty, place_ + ": '" + key + "'");
  }
  found->check_is_object();
  return *found;
}

void JsonValue::fail_missing(const std::string& key) const {
  TESSERA_FAIL(
      "{} lacks '{}'; fetch the file again, or one of a model that has it",
      place_,
      key);
}

void JsonValue::check_is_object() const {
  TESSERA_CHECK(
      value_->is_object(),
      "{} is {}, not a JSON object; fetch the model's folder again",
      place_,
      show_json(*value_));
}

std::vector<JsonValue> JsonValue::elements() const {
  if (!value_->is_array()) {
    fail("a list");
  }
  std::vector<JsonValue> all;
  for (size_t i = 0; i < value_->size(); ++i) {
    all.push_back(nested((*value_)[i], place_ + "[" + std::to_string(i) + "]"));
  }
  return all;
}

std::vector<std::string> JsonValue::keys() const {
  if (!value_->is_object()) {
    fail("an object");
  }
  std::vector<std::string> all;
  for (const auto& item : value_->items()) {
    all.push_back(item.key());
  }
  return all;
}

template <typename Kind>
typename Kind::Value JsonValue::convert(const Kind& kind) const {
  if (!kind.accepts(*value_)) {
    fail(kind.expected);
  }
  return value_->get<typename Kind::Value>();
}

template <>
bool JsonValue::as<bool>() const {
  return convert(detail::BoolKind{});
}

template <>
int64_t JsonValue::as<int64_t>() const {
  return integer({});
}

template <>
double JsonValue::as<double>() const {
  return convert(detail::DoubleKind{});
}

template <>
std::string JsonValue::as<std::string>() const {
  return convert(detail::StringKind{});
}

int64_t JsonValue::integer(IntRange range) const {
  return convert(detail::IntKind{range});
}

std::vector<int64_t> JsonValue::integers(IntRange range) const {
  std::vector<int64_t> all;
  for (const JsonValue& element : elements()) {
    all.push_back(element.integer(range));
  }
  return all;
}

std::vector<std::string> JsonValue::texts() const {
  std::vector<std::string> all;
  for (const JsonValue& element : elements()) {
    all.push_back(element.as<std::string>());
  }
  return all;
}

JsonValue json_object(nlohmann::json object, std::string place) {
  JsonValue value(std::move(object), std::move(place));
  value.check_is_object();
  return value;
}

} // namespace tessera::runtime
