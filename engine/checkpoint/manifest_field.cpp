// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/manifest_field.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"

namespace tessera::engine {

void ManifestField::fail(const std::string& expected) const {
  TESSERA_FAIL(
      "{} is {}, but must be {}; the checkpoint is damaged or from another version: load another one",
      place_,
      runtime::show_json(value_),
      expected);
}

std::optional<ManifestField> ManifestField::find(const std::string& key) const {
  if (!value_.is_object()) {
    fail("an object with '" + key + "'");
  }
  const auto found = value_.find(key);
  if (found == value_.end()) {
    return std::nullopt;
  }
  return ManifestField(*found, place_ + ": '" + key + "'");
}

ManifestField ManifestField::at(const std::string& key) const {
  const auto found = find(key);
  if (!found) {
    fail("an object with '" + key + "'");
  }
  return *found;
}

std::vector<ManifestField> ManifestField::elements() const {
  if (!value_.is_array()) {
    fail("a list");
  }
  std::vector<ManifestField> all;
  for (size_t i = 0; i < value_.size(); ++i) {
    all.emplace_back(value_[i], place_ + "[" + std::to_string(i) + "]");
  }
  return all;
}

std::vector<std::string> ManifestField::keys() const {
  if (!value_.is_object()) {
    fail("an object");
  }
  std::vector<std::string> all;
  for (const auto& item : value_.items()) {
    all.push_back(item.key());
  }
  return all;
}

int64_t ManifestField::integer(int64_t min, int64_t max) const {
  const bool fits =
      value_.is_number_integer() &&
      (!value_.is_number_unsigned() || value_.get<uint64_t>() <= INT64_MAX);
  if (!fits || value_.get<int64_t>() < min || value_.get<int64_t>() > max) {
    fail(
        "an integer from " + std::to_string(min) + " to " +
        std::to_string(max));
  }
  return value_.get<int64_t>();
}

double ManifestField::number() const {
  if (!value_.is_number()) {
    fail("a number");
  }
  return value_.get<double>();
}

std::string ManifestField::text() const {
  if (!value_.is_string()) {
    fail("a string");
  }
  return value_.get<std::string>();
}

std::vector<int64_t> ManifestField::integers() const {
  std::vector<int64_t> all;
  for (const ManifestField& element : elements()) {
    all.push_back(element.integer());
  }
  return all;
}

std::vector<std::string> ManifestField::texts() const {
  std::vector<std::string> all;
  for (const ManifestField& element : elements()) {
    all.push_back(element.text());
  }
  return all;
}

} // namespace tessera::engine
