// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FieldRecord` lists the fields read from a config.json, for messages about
// layers or weights that do not fit it: code that detects this knows sizes, but
// not the fields that they come from.

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace tessera::zoo {

class FieldRecord {
 public:
  /// Records a field's value; null means that it is not given.
  void add(const std::string& name, nlohmann::json value);

  /// The fields in reading order: "hidden_size 24, n_inner not given".
  std::string text() const;

 private:
  std::vector<std::pair<std::string, nlohmann::json>> fields_;
};

} // namespace tessera::zoo
