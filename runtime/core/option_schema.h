// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptionSchema` describes the keys of an options struct: as JSON Schema and as
// rows of a table.

#include "tessera/runtime/core/option_fields.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tessera::runtime {

/// One key of a configuration.
struct OptionRow {
  std::string path; ///< "optimizer.lr"; elements: "optimizer.parameters[].lr"
  std::string values; ///< "a number of at least 0"
  std::string fallback; ///< as JSON; empty if there is none
  std::string doc;
  /// Names of a choice without which there is no such key; empty: always.
  std::vector<std::string> only_for;

  bool operator==(const OptionRow&) const = default;
};

/// Records all fields, those of every branch too.
///
///     file << describe_fields<MuonOptions>().schema();
class OptionSchema final : public OptionFields {
 public:
  OptionSchema();

  /// In the dialect 2020-12, without "$schema". It accepts what read_fields()
  /// accepts, and integers written as 1.0.
  nlohmann::ordered_json schema() const;
  const std::vector<OptionRow>& rows() const {
    return rows_;
  }

 private:
  /// An object, array or branch around the next field.
  struct Open {
    nlohmann::ordered_json schema;
    std::string key; ///< in the object around it; empty for an element
    std::string path; ///< with "." behind it
    std::vector<std::string> only_for = {};
  };

  void on_bool(const OptionField& field, std::optional<bool>& value) override;
  void on_int(const OptionField& field, std::optional<int64_t>& value) override;
  void on_bytes(const OptionField& field, std::optional<int64_t>& value)
      override;
  void on_number(const OptionField& field, std::optional<double>& value)
      override;
  void on_string(const OptionField& field, std::optional<std::string>& value)
      override;
  void on_strings(const OptionField& field, std::vector<std::string>& value)
      override;
  void on_ints(const OptionField& field, std::vector<int64_t>& value) override;
  void on_numbers(const OptionField& field, std::vector<double>& value)
      override;
  void on_choice(
      const OptionField& field,
      const std::vector<std::string>& names,
      std::optional<size_t>& chosen,
      bool is_set) override;
  bool begin_branch(
      const OptionChoice& choice,
      const std::vector<std::string>& names) override;
  void end_branch() override;
  bool has_object(OptionKey key, bool has_value) override;
  void begin_object(const OptionField& field) override;
  void end_object() override;
  size_t begin_list(const OptionField& field, size_t size) override;
  void begin_element(size_t index) override;
  void end_list() override;

  void add(
      const OptionField& field,
      const std::string& values,
      nlohmann::ordered_json property,
      const nlohmann::ordered_json& fallback);
  void open(
      const OptionField& field,
      const char* type,
      const std::string& mark);
  void close();

  std::vector<Open> open_;
  std::vector<OptionRow> rows_;
};

/// The fields of a struct, with the values that it has without being set.
template <typename Options>
OptionSchema describe_fields() {
  OptionSchema fields;
  Options defaults;
  visit_fields(fields, defaults);
  return fields;
}

/// The rows as a table in Markdown, sorted by sections; rows of one path become
/// one.
std::string markdown_table(const std::vector<OptionRow>& rows);

/// For a terminal: the rows whose path is `section`, or is in it; "" is in all.
std::string key_list(
    const std::vector<OptionRow>& rows,
    const std::string& section);

} // namespace tessera::runtime
