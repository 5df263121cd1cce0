// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JsonValue` gives typed access to a value of a JSON file that a program
// wrote, which may have keys that nothing reads; its errors name the place. For
// configurations that users write, see `ConfigReader`.

#include "tessera/runtime/core/value_range.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// A value and its place in the document.
class JsonValue {
 public:
  /// Borrows the value.
  /// @param remedy the end of every error, e.g. "; load another one".
  JsonValue(
      const nlohmann::json& value,
      std::string place,
      const char* remedy = "")
      : JsonValue(
            std::shared_ptr<const nlohmann::json>(
                std::shared_ptr<void>(),
                &value),
            std::move(place),
            remedy) {}
  /// Keeps the value, as do the values in it.
  JsonValue(nlohmann::json&& value, std::string place, const char* remedy = "")
      : JsonValue(
            std::make_shared<const nlohmann::json>(std::move(value)),
            std::move(place),
            remedy) {}

  /// @throws tessera::Error if this is not an object or lacks the key.
  JsonValue at(const std::string& key) const;
  /// Nothing if the key is absent.
  /// @throws tessera::Error if this is not an object.
  std::optional<JsonValue> find(const std::string& key) const;
  /// As find(), also nothing if the value is null.
  std::optional<JsonValue> find_set(const std::string& key) const;
  /// The value of a key, as as<Value>(); `otherwise` if it is absent.
  template <typename Value>
  Value value_or(const std::string& key, Value otherwise) const {
    const auto found = find(key);
    return found ? found->template as<Value>() : std::move(otherwise);
  }
  /// The value of a key, as as<Value>(); nothing if it is absent or null.
  template <typename Value>
  std::optional<Value> get(const std::string& key) const {
    const auto found = find_set(key);
    return found ? std::optional(found->template as<Value>()) : std::nullopt;
  }
  /// As value_or(), also `otherwise` if the value is null.
  template <typename Value>
  Value get_or(const std::string& key, Value otherwise) const {
    return get<Value>(key).value_or(std::move(otherwise));
  }
  /// The value of a key, as as<Value>().
  /// @throws tessera::Error if it is absent or null.
  template <typename Value>
  Value require(const std::string& key) const {
    const std::optional<Value> value = get<Value>(key);
    if (!value) {
      fail_missing(key);
    }
    return *value;
  }
  /// A nested object; an empty one if it is absent or null.
  /// @throws tessera::Error if it is something else.
  JsonValue section(const std::string& key) const;
  bool contains(const std::string& key) const {
    return value_->contains(key);
  }
  /// @throws tessera::Error if this is not an array.
  std::vector<JsonValue> elements() const;
  /// The keys of an object, in order.
  std::vector<std::string> keys() const;

  /// bool, int64_t, double or std::string.
  /// @throws tessera::Error if it has another type.
  template <typename Value>
  Value as() const;
  int64_t integer(IntRange range = {.min = 0}) const;
  std::vector<int64_t> integers(IntRange range = {.min = 0}) const;
  std::vector<std::string> texts() const;

  const nlohmann::json& value() const {
    return *value_;
  }
  const std::string& place() const {
    return place_;
  }

  /// Throws "PLACE is VALUE, but must be `expected`", and the remedy.
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  friend JsonValue json_object(nlohmann::json object, std::string place);

  JsonValue(
      std::shared_ptr<const nlohmann::json> value,
      std::string place,
      const char* remedy)
      : value_(std::move(value)), place_(std::move(place)), remedy_(remedy) {}
  /// Of a value in this one.
  JsonValue nested(const nlohmann::json& value, std::string place) const {
    return JsonValue(
        std::shared_ptr<const nlohmann::json>(value_, &value),
        std::move(place),
        remedy_);
  }
  template <typename Kind>
  typename Kind::Value convert(const Kind& kind) const;
  [[noreturn]] void fail_missing(const std::string& key) const;
  void check_is_object() const;

  std::shared_ptr<const nlohmann::json> value_;
  std::string place_;
  const char* remedy_;
};

template <>
bool JsonValue::as<bool>() const;
template <>
int64_t JsonValue::as<int64_t>() const;
template <>
double JsonValue::as<double>() const;
template <>
std::string JsonValue::as<std::string>() const;

/// An object that was in a file of a model.
/// @throws tessera::Error if it is no object.
JsonValue json_object(nlohmann::json object, std::string place);

} // namespace tessera::runtime
