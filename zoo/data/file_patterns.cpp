// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/file_patterns.h"

#include "tessera/runtime/core/error.h"

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <set>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// The folder of a pattern before its first special character.
fs::path fixed_folder(const std::string& pattern) {
  const size_t special = pattern.find_first_of("*?[");
  const size_t slash = pattern.rfind('/', special);
  return slash == std::string::npos ? fs::path(".")
         : slash == 0               ? fs::path("/")
                                    : fs::path(pattern.substr(0, slash));
}

bool matches(const std::string& pattern, const std::string& path) {
  if (::fnmatch(pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0) {
    return true;
  }
  const size_t stars = pattern.find("**/");
  if (stars == std::string::npos) {
    return false;
  }
  // No folder, or one more.
  std::string none = pattern;
  none.erase(stars, 3);
  std::string more = pattern;
  more.replace(stars, 3, "*/**/");
  const auto depth = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '/');
  };
  return matches(none, path) ||
         (depth(more) <= depth(path) + 1 && matches(more, path));
}

void add_matches(const std::string& pattern, std::vector<fs::path>& files) {
  const fs::path folder = fixed_folder(pattern);
  const bool has_folder = pattern.find('/') != std::string::npos;
  const size_t before = files.size();
  std::error_code code;
  const auto add = [&](const fs::directory_entry& entry) {
    const std::string path =
        has_folder ? entry.path().string() : entry.path().filename().string();
    if (entry.is_regular_file() && matches(pattern, path)) {
      files.emplace_back(path);
    }
  };
  const bool is_deep = std::count(
                           pattern.begin() + static_cast<std::ptrdiff_t>(
                                                 pattern.find_first_of("*?[")),
                           pattern.end(),
                           '/') > 0;
  if (is_deep) {
    for (const auto& entry : fs::recursive_directory_iterator(folder, code)) {
      add(entry);
    }
  } else {
    for (const auto& entry : fs::directory_iterator(folder, code)) {
      add(entry);
    }
  }
  std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  TESSERA_CHECK(
      files.size() > before,
      "no file matches '{}'{}",
      pattern,
      code
          ? formatted(": cannot read '{}': {}", folder.string(), code.message())
          : "");
}

} // namespace

std::vector<fs::path> matching_files(const std::vector<std::string>& names) {
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    std::error_code code;
    if (name.find_first_of("*?[") == std::string::npos ||
        fs::exists(name, code)) {
      files.emplace_back(name);
    } else {
      add_matches(name, files);
    }
  }
  std::set<fs::path> distinct;
  for (const fs::path& file : files) {
    TESSERA_CHECK(
        distinct.insert(file.lexically_normal()).second,
        "'{}' is named twice",
        file.string());
  }
  return files;
}

} // namespace tessera::zoo
