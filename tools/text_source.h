// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TextSource` provides the texts of a command that takes them as arguments,
// from a file or from standard input.

#include "tessera/zoo/data/text_rows.h"
#include "tessera/zoo/tasks/text_predictor.h"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tools {

/// Texts are lines, and with pairs, two texts separated by a tab. If the first
/// line starts with '{', all are JSON objects instead; files that end in .csv
/// or .tsv are tables with a header. Empty lines are skipped.
class TextSource {
 public:
  /// @param arguments the texts themselves, pairs one after the other; if
  ///     empty, they are read from `file`.
  /// @param file "-" or empty: standard input.
  /// @param columns keys of JSON objects: one, or two for pairs.
  /// @throws tessera::Error if the file cannot be read or is not text.
  TextSource(
      std::vector<std::string> arguments,
      const std::string& file,
      std::vector<std::string> columns);

  /// The next texts; empty after the last one. At a terminal one at a time, so
  /// that each is answered before the next one is typed.
  /// @throws tessera::Error naming file and line.
  std::vector<zoo::TextPair> next(size_t count);

 private:
  std::optional<zoo::TextPair> next_argument();
  std::optional<zoo::TextPair> next_line();
  zoo::TextPair parsed(const std::string& line) const;
  bool are_pairs() const {
    return columns_.size() > 1;
  }

  std::vector<std::string> arguments_;
  std::vector<std::string> columns_;
  std::string name_; ///< of the file, for messages
  std::unique_ptr<zoo::TextRows> table_; ///< null: lines
  std::ifstream file_; ///< not open: standard input
  bool has_arguments_;
  bool is_typed_ = false;
  size_t used_arguments_ = 0;
  int64_t line_ = 0;
  std::optional<bool> is_json_; ///< nullopt before the first line
};

} // namespace tessera::tools
