// SPDX-License-Identifier: Apache-2.0
#pragma once
// `describe_list()` describes the keys of an options struct: as JSON Schema
// and as rows of a table.

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

struct OptionDescription {
  /// In the dialect 2020-12, without "$schema". It accepts what read_fields()
  /// accepts, and integers written as 1.0.
  nlohmann::ordered_json schema;
  std::vector<OptionRow> rows; ///< of every branch
};

/// The values that the fields have are their defaults.
OptionDescription describe_list(const OptionList& list);

/// The rows whose path is `section` or in it; all for "".
std::vector<OptionRow> rows_in(
    const std::vector<OptionRow>& rows,
    const std::string& section);

/// The schemas of the keys with that path, "optimizer.parameters[].lr_scale";
/// those of several branches, if they differ. `schema` itself for "".
std::vector<nlohmann::ordered_json> schemas_at(
    const nlohmann::ordered_json& schema,
    const std::string& path);

/// The rows as a table in Markdown, sorted by sections; rows of one path become
/// one.
std::string markdown_table(const std::vector<OptionRow>& rows);

/// The same for a terminal.
std::string key_list(const std::vector<OptionRow>& rows);

} // namespace tessera::runtime
