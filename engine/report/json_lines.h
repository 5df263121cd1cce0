// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JsonLinesWriter` writes metrics as JSON lines.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera::engine {

/// Writes one JSON object per line (https://jsonlines.org). Each line is
/// written by one system call, so that the file can be followed while it grows
/// and survives the death of the process (not that of the machine). Used by one
/// thread. Blocks on the disk; throws tessera::Error naming the file.
class JsonLinesWriter {
 public:
  enum class Mode {
    kNew, ///< Truncates an existing file.
    kAppend, ///< Appends after the last whole line of a file.
  };

  explicit JsonLinesWriter(std::filesystem::path path, Mode mode = Mode::kNew);
  ~JsonLinesWriter();
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  /// Numbers that are not finite become null, because JSON does not have them.
  /// Leaves no part of a line if it throws.
  void write(const nlohmann::ordered_json& object);

 private:
  void cut_torn_line();

  std::filesystem::path path_;
  int fd_ = -1;
};

} // namespace tessera::engine
