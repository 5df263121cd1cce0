// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextSource` provides the texts of a command that takes them as arguments,
// from a file or from standard input.

#include "tessera/text/rows/text_rows.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

/// Rows with a text for each column. Texts are lines, and with several columns,
/// texts separated by tabs. Files that end in .json, .jsonl or .ndjson have a
/// JSON object in each line, and so has what starts with '{' and does not end
/// in .txt; files that end in .csv or .tsv are tables. Empty lines are skipped,
/// with a warning. Lines must be UTF-8.
class TextSource {
 public:
  /// @param arguments the texts themselves, those of a row one after the other;
  ///     if empty, they are read from `file`.
  /// @param file "-" or empty: standard input.
  /// @param columns keys of rows; JSON objects and tables may have others.
  /// @param rows how tables are read, and what becomes of bad rows.
  /// @throws tessera::Error if the file cannot be read or is not text.
  TextSource(
      std::vector<std::string> arguments,
      const std::string& file,
      std::vector<std::string> columns,
      const text::TextRowOptions& rows = {});

  /// Calls `use` with the next rows, up to `count`; at a terminal with one, so
  /// that each is answered before the next one is typed. If bad rows are
  /// skipped, an Error of `use` leaves out the row.
  /// @return how many were used; 0 after the last one.
  /// @throws tessera::Error naming file and line.
  size_t next(
      size_t count,
      const std::function<void(const text::TextRow& row)>& use);
  /// The same of the first column: its texts; none after the last one.
  std::vector<std::string> next_texts(size_t count);

 private:
  std::optional<text::TextRow> next_row();
  std::optional<text::TextRow> next_argument();
  text::TextRow parsed(const std::string& line) const;
  void log_skipped(const Error& error);

  std::vector<std::string> arguments_;
  std::vector<std::string> columns_;
  std::string name_; ///< of the file, for messages
  std::unique_ptr<text::TextRows> table_; ///< null: lines
  std::ifstream file_; ///< not open: standard input
  text::BadRows bad_rows_;
  bool has_arguments_;
  bool is_typed_ = false;
  size_t used_arguments_ = 0;
  int64_t line_ = 0;
  int64_t skipped_ = 0;
  int64_t empty_lines_ = 0; ///< before rows
  std::optional<bool> is_json_; ///< nullopt before the first line
};

} // namespace tessera::tools
