// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strict access to what a manifest.json says, for errors that name the place.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// A value and where it stands. Borrows the value.
class ManifestField {
 public:
  ManifestField(const nlohmann::json& value, std::string place)
      : value_(value), place_(std::move(place)) {}

  /// @throws Error when this is no object or lacks the key.
  ManifestField at(const std::string& key) const;
  /// Nothing where the key is absent.
  /// @throws Error when this is no object.
  std::optional<ManifestField> find(const std::string& key) const;
  /// @throws Error when this is no array.
  std::vector<ManifestField> elements() const;
  /// Of an object, in the order of their keys.
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

  /// "PLACE is VALUE, but must be `expected`; ..."
  [[noreturn]] void fail(const std::string& expected) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
};

} // namespace tessera
