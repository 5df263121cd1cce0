// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextRows` reads the rows of JSON lines, CSV and TSV files as objects with a
// place each.

#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::text {

/// One row of a file.
struct TextRow {
  /// An object. A table's values are strings, by the names in its header.
  nlohmann::json values;
  std::filesystem::path file;
  int64_t line = 0; ///< its first, from 1
  bool is_of_table = false; ///< all values are strings
  std::string text; ///< of JSON lines: the line, with its keys in order

  /// `values` with keys in the order of the file, where it has one.
  nlohmann::ordered_json ordered_values() const;
  /// "FILE:LINE", for messages.
  std::string place() const;
};

/// "'question, answer'", the keys of an object, or "an empty object", for
/// messages.
std::string keys_text(const nlohmann::json& object);

/// A row that cannot be used; those after it can.
class BadRow : public Error {
 public:
  using Error::Error;
};

enum class RowFormat { kJsonLines, kCsv, kTsv };

/// How rows that cannot be used are treated.
enum class BadRows { kError, kSkip };

struct TextRowOptions {
  /// Nothing: as the file's name and first line say.
  std::optional<RowFormat> format;
  /// The columns of a table without a header; empty: its first line has them.
  std::vector<std::string> columns;
  /// Whether fields of tables may stand in quotes, as RFC 4180 and Python's csv
  /// module have it; false: quotes are characters like others.
  bool quotes = true;
  /// Of for_each_row().
  BadRows bad_rows = BadRows::kError;

  bool operator==(const TextRowOptions&) const = default;
};

void visit_fields(runtime::OptionFields& fields, TextRowOptions& options);

/// Where a row begins.
struct RowPosition {
  int64_t offset = 0; ///< in bytes
  int64_t line = 1;
};

/// Files that end in .csv are tables with commas or semicolons, in .tsv with
/// tabs, in .json, .jsonl or .ndjson JSON lines; of others, the first line
/// decides. A byte order mark, CRLF and empty lines are accepted. Reads as it
/// goes: memory does not grow with the file.
class TextRows {
 public:
  /// @throws Error if the file cannot be read or is of another format; the
  ///   message has a command that converts common ones. Also if the header of a
  ///   table names a column twice.
  /// @param start where to begin, as position() says.
  explicit TextRows(
      const std::filesystem::path& path,
      const TextRowOptions& options = {},
      RowPosition start = {});
  ~TextRows();

  TextRows(const TextRows&) = delete;
  TextRows& operator=(const TextRows&) = delete;

  /// The next row; nullopt after the last one.
  /// @throws BadRow naming file and line of what is no JSON object, is not
  ///   UTF-8, or has more or fewer fields than the header; the row after it can
  ///   be read. Error on a quote that is never closed, and on rows of 256 MiB.
  std::optional<TextRow> next();

  /// Of a table; empty for JSON lines.
  const std::vector<std::string>& columns() const;
  /// Where what next() reads next begins.
  RowPosition position() const;

 private:
  class Bytes;
  struct Source;
  std::unique_ptr<Source> source_;
};

/// Calls `use` with each row of the files. With BadRows::kSkip, a BadRow and
/// any Error of `use` leave out that row; the first ones and their number are
/// logged.
/// @return the number of rows left out.
/// @throws Error as TextRows and, with BadRows::kError, as `use`.
int64_t for_each_row(
    const std::vector<std::filesystem::path>& files,
    const TextRowOptions& options,
    const std::function<void(const TextRow& row)>& use);

} // namespace tessera::text
