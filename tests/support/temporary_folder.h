// SPDX-License-Identifier: Apache-2.0
#pragma once
// A folder for one test, removed with all it holds.

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/remove_tree.h"

namespace tessera {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "tessera-test-XXXXXX")
            .string();
    TESSERA_CHECK(
        ::mkdtemp(name.data()) != nullptr, "cannot create the folder {}", name);
    path_ = name;
  }

  ~TemporaryFolder() {
    std::error_code ignored;
    runtime::remove_tree(path_, ignored);
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }

  std::filesystem::path operator/(const std::string& name) const {
    return path_ / name;
  }

  /// How many files and folders it holds.
  size_t count() const {
    return static_cast<size_t>(std::distance(
        std::filesystem::directory_iterator(path_),
        std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

} // namespace tessera
