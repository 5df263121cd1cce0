// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the zoo's tests share: the real model's folder, fixtures, and folders
// that vanish.

#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tessera {

/// The folder of all-MiniLM-L6-v2. Its absence fails a test, never skips it.
inline std::filesystem::path minilm_folder() {
  const char* set = std::getenv("TESSERA_MINILM");
  const std::filesystem::path folder =
      set != nullptr ? set : TESSERA_SOURCE_DIR "/models/minilm";
  TESSERA_CHECK(
      std::filesystem::exists(folder / "config.json"),
      "no model at ",
      folder,
      "; run 'make setup', or set TESSERA_MINILM to the folder of "
      "all-MiniLM-L6-v2");
  return folder;
}

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TESSERA_FIXTURES_DIR) / name;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  TESSERA_CHECK(file.is_open(), "cannot read ", path);
  return nlohmann::json::parse(file);
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TESSERA_CHECK(file.is_open(), "cannot read ", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(
    const std::filesystem::path& path,
    const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A fresh folder, removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "tessera-zoo-XXXXXX")
            .string();
    TESSERA_CHECK(mkdtemp(name.data()) != nullptr, "mkdtemp failed");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
};

/// The message of the Error that `action` throws, or "" when it throws none.
template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

} // namespace tessera
