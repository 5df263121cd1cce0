// SPDX-License-Identifier: Apache-2.0
#pragma once
// `JsonLinesWriter` writes metrics as JSON lines.

#include "tessera/engine/report/appended_file.h"

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace tessera::engine {

/// Writes one JSON object per line (https://jsonlines.org) to an AppendedFile.
class JsonLinesWriter {
 public:
  enum class Mode {
    kNew, ///< Truncates an existing file.
    kAppend, ///< Appends after the last whole line of a file.
  };

  explicit JsonLinesWriter(std::filesystem::path path, Mode mode = Mode::kNew);

  /// Numbers that are not finite become null, because JSON does not have them.
  /// Leaves no part of a line if it throws.
  void write(const nlohmann::ordered_json& object);

 private:
  AppendedFile file_;
};

} // namespace tessera::engine
