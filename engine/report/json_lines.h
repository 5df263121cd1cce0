// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics as JSON lines.

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tessera {

/// Writes one JSON object a line (https://jsonlines.org). Each line reaches the
/// file in one system call, so that it can be followed while it grows and
/// survives the death of the process (not that of the machine). Used by one
/// thread. Blocks on the disk; throws Error naming the file.
class JsonLinesWriter {
 public:
  enum class Mode {
    kNew, ///< Empties a file that exists.
    kAppend, ///< Goes on behind the last whole line of a file that exists.
  };

  explicit JsonLinesWriter(std::filesystem::path path, Mode mode = Mode::kNew);
  ~JsonLinesWriter();
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  /// Numbers that are not finite become null, as JSON has none.
  void write(const nlohmann::ordered_json& object);

 private:
  void cut_torn_line();

  std::filesystem::path path_;
  int fd_ = -1;
};

} // namespace tessera
