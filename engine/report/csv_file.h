// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CsvWriter` writes metrics as a table of comma-separated values.

#include "tessera/engine/report/appended_file.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// A table (RFC 4180) with a header, a row for each line and a column for each
/// name, in the order of their appearance. A name that is new in a later line
/// becomes a further column, for which the file is written anew. What a row
/// lacks, and numbers that are not finite, are empty.
///
/// Used by one thread. Blocks on the disk; throws tessera::Error naming the
/// file.
class CsvWriter {
 public:
  /// Replaces an existing file.
  CsvWriter(
      std::filesystem::path path,
      const std::vector<nlohmann::ordered_json>& lines);
  ~CsvWriter();

  /// @param line an object of numbers.
  void write(const nlohmann::ordered_json& line);

 private:
  void add_columns(const nlohmann::ordered_json& line);
  void write_all();

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  std::vector<nlohmann::ordered_json> lines_;
  std::optional<AppendedFile> file_;
};

} // namespace tessera::engine
