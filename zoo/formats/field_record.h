// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FieldRecord` lists the fields read from a config.json, for messages about
// layers or weights that do not fit it: code that detects this knows sizes, but
// not the fields that they come from.

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace tessera::zoo {

class FieldRecord {
 public:
  /// Records a value of the file, which may be null. The first one of a field
  /// counts.
  void add(const std::string& name, nlohmann::json value);
  /// Records that a field is not given, and the value used in its place; null:
  /// none.
  void add_default(const std::string& name, nlohmann::json value);

  /// Whether a field has been looked for, given or not.
  bool has(const std::string& name) const;

  /// What the shapes of weights come from, in reading order: sizes, given or by
  /// default, and given flags, ratios and nulls: "hidden_size 24, head_dim 8
  /// (default)". Other numbers and texts are checked where they are read.
  std::string text() const;

  /// The values used for fields that are not given, by name; null: none.
  std::map<std::string, nlohmann::json> defaults() const;

 private:
  struct Field {
    std::string name;
    nlohmann::json value;
    bool is_given = true;
  };

  Field* find(const std::string& name);

  std::vector<Field> fields_;
};

} // namespace tessera::zoo
