// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ManifestField` gives strict access to a manifest.json; its errors name the
// place.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// A value and its place in the document. Borrows the value.
class ManifestField {
 public:
  ManifestField(const nlohmann::json& value, std::string place)
      : value_(value), place_(std::move(place)) {}

  /// @throws tessera::Error if this is not an object or lacks the key.
  ManifestField at(const std::string& key) const;
  /// Nothing if the key is absent.
  /// @throws tessera::Error if this is not an object.
  std::optional<ManifestField> find(const std::string& key) const;
  /// @throws tessera::Error if this is not an array.
  std::vector<ManifestField> elements() const;
  /// The keys of an object, in order.
  std::vector<std::string> keys() const;

  int64_t integer(
      int64_t min = 0,
      int64_t max = std::numeric_limits<int64_t>::max()) const;
  double number() const;
  std::string text() const;
  std::vector<int64_t> integers() const;
  std::vector<std::string> texts() const;

  const nlohmann::json& value() const {
    return value_;
  }

  /// Throws "PLACE is VALUE, but must be `expected`; ..."
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
};

} // namespace tessera::engine
