// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_json_object()` reads one of the JSON files of a model's folder.

#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/json_value.h"
#include "tessera/runtime/io/atomic_file.h"

#include <filesystem>

namespace tessera::runtime {

/// A missing file yields an empty object.
/// @throws tessera::Error if it is not a JSON object.
inline JsonValue read_json_object(const std::filesystem::path& path) {
  return json_object(
      std::filesystem::exists(path)
          ? parse_json(read_text_file(path), path.string())
          : nlohmann::json::object(),
      path.string());
}

} // namespace tessera::runtime
