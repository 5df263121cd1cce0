// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JsonFields` gives typed access to the JSON files of a Hugging Face folder.
// Unlike Tessera's own configurations, they may contain unknown keys.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/json_value.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

namespace tessera::runtime {

/// A JSON object with the name of its origin, for messages.
class JsonFields {
 public:
  /// @throws Error if `object` is not a JSON object.
  JsonFields(nlohmann::json object, std::string origin)
      : object_(std::move(object)), origin_(std::move(origin)) {
    TESSERA_CHECK(
        object_.is_object(),
        "{} is {}, not a JSON object; fetch the model's folder again",
        origin_,
        show_json(object_));
  }

  /// Reads a file; a missing one yields an empty object.
  /// @throws Error if it is not a JSON object.
  static JsonFields from_file(const std::filesystem::path& path) {
    if (!std::filesystem::exists(path)) {
      return {nlohmann::json::object(), path.string()};
    }
    return {parse_json(read_text_file(path), path.string()), path.string()};
  }

  /// The value of a key (bool, int64_t, double or string); nullopt if it is
  /// absent or null.
  /// @throws Error if it has another type, naming file, key and value.
  template <typename Value>
  std::optional<Value> get(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end() || found->is_null()) {
      return std::nullopt;
    }
    return JsonValue(*found, origin_ + ": '" + key + "'").as<Value>();
  }

  template <typename Value>
  Value get_or(const char* key, Value otherwise) const {
    return get<Value>(key).value_or(std::move(otherwise));
  }

  /// @throws Error if the key is absent.
  template <typename Value>
  Value require(const char* key) const {
    const std::optional<Value> value = get<Value>(key);
    TESSERA_CHECK(
        value.has_value(),
        "{} lacks '{}'; fetch the file again, or one of a model that has it",
        origin_,
        key);
    return *value;
  }

  /// A nested object; an empty one if it is absent or null.
  JsonFields section(const char* key) const {
    const nlohmann::json found = object_.value(key, nlohmann::json());
    return {
        found.is_null() ? nlohmann::json::object() : found,
        origin_ + ": '" + key + "'"};
  }

  bool contains(const char* key) const {
    return object_.contains(key);
  }
  const nlohmann::json& object() const {
    return object_;
  }
  const std::string& origin() const {
    return origin_;
  }

 private:
  nlohmann::json object_;
  std::string origin_;
};

} // namespace tessera::runtime
