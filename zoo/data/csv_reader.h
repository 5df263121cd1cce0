// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CsvReader` reads the records of a CSV file (RFC 4180).

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

namespace tessera::zoo {

/// A field may stand in double quotes, within which two stand for one, and
/// delimiters and line ends for themselves. Lines end with LF or CRLF; empty
/// ones are skipped. A quote within a field without quotes is a character.
class CsvReader {
 public:
  /// @param lines borrowed, in binary mode, at the beginning of a record.
  /// @param line its number, from 1.
  CsvReader(std::istream& lines, char delimiter, int64_t line = 1)
      : lines_(lines), delimiter_(delimiter), line_(line) {}

  /// @return false after the last record.
  /// @throws tessera::Error without a place, if a quote is not closed or
  ///     characters follow a closing one; the next call reads what follows the
  ///     record.
  bool next(std::vector<std::string>& fields);

  /// Where the record that next() read began.
  int64_t record_line() const {
    return record_line_;
  }
  /// The number of the next line.
  int64_t line() const {
    return line_;
  }

 private:
  /// The rest of a field after its opening quote.
  /// @return where it ends in text_.
  size_t read_quoted(size_t at, size_t number, std::string& field);

  std::istream& lines_;
  char delimiter_;
  int64_t line_;
  int64_t record_line_ = 0;
  std::string text_; ///< the record's last line so far
};

} // namespace tessera::zoo
