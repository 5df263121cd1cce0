// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the zoo's tests share: the real model's folder and the fixtures.

#include "support/paths.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tessera {

/// The folder of all-MiniLM-L6-v2. Its absence fails a test, never skips it.
inline std::filesystem::path minilm_folder() {
  const char* set = std::getenv("TESSERA_MINILM");
  std::filesystem::path folder =
      set != nullptr ? set : tests::source_dir() + "/models/minilm";
  TESSERA_CHECK(
      std::filesystem::exists(folder / "config.json"),
      "no model at {}; run 'make setup', or set TESSERA_MINILM to the folder of all-MiniLM-L6-v2",
      folder);
  return folder;
}

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(tests::source_dir()) / "tests/zoo/fixtures" /
         name;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return runtime::parse_json(runtime::read_text_file(path), path.string());
}

} // namespace tessera
