// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/rows/file_patterns.h"

#include "tessera/runtime/core/error.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <span>
#include <system_error>

namespace tessera::text {

namespace {

namespace fs = std::filesystem;

bool is_pattern(const std::string& name) {
  return name.find_first_of("*?[") != std::string::npos;
}

/// Adds the files that a pattern of names stands for.
class PatternMatches {
 public:
  explicit PatternMatches(std::vector<fs::path>& files) : files_(files) {}

  /// @param folder empty: the working directory.
  void add(const fs::path& folder, std::span<const std::string> names) {
    const std::string& name = names.front();
    const auto rest = names.subspan(1);
    if (!is_pattern(name)) {
      add_entry(folder / name, rest);
    } else if (name != "**" || rest.empty()) {
      for (const fs::path& entry : entries(folder)) {
        if (::fnmatch(name.c_str(), entry.filename().c_str(), 0) == 0) {
          add_entry(entry, rest);
        }
      }
    } else {
      add(folder, rest); // no folder, or one more
      for (const fs::path& entry : entries(folder)) {
        std::error_code ignored;
        if (fs::is_directory(fs::symlink_status(entry, ignored))) {
          add(entry, names);
        }
      }
    }
  }

  /// ": cannot read ...", of the first folder that cannot; or "".
  const std::string& problem() const {
    return problem_;
  }

 private:
  void add_entry(const fs::path& entry, std::span<const std::string> rest) {
    std::error_code ignored;
    if (!rest.empty()) {
      if (!fs::exists(entry, ignored) || fs::is_directory(entry, ignored)) {
        add(entry, rest);
      }
    } else if (fs::is_regular_file(entry, ignored)) {
      files_.push_back(entry);
    }
  }

  std::vector<fs::path> entries(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code code;
    const fs::path read = folder.empty() ? fs::path(".") : folder;
    for (fs::directory_iterator entry(read, code), end; !code && entry != end;
         entry.increment(code)) {
      found.push_back(folder / entry->path().filename());
    }
    if (code && problem_.empty()) {
      problem_ =
          formatted(": cannot read '{}': {}", read.string(), code.message());
    }
    return found;
  }

  std::vector<fs::path>& files_;
  std::string problem_;
};

void add_matches(const std::string& pattern, std::vector<fs::path>& files) {
  std::vector<std::string> names;
  const fs::path path(pattern);
  for (const fs::path& name : path.relative_path()) {
    names.push_back(name.string());
  }
  std::vector<fs::path> found;
  PatternMatches matches(found);
  matches.add(path.root_path(), names);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  TESSERA_CHECK(
      !found.empty(), "no file matches '{}'{}", pattern, matches.problem());
  files.insert(files.end(), found.begin(), found.end());
}

} // namespace

std::vector<fs::path> matching_files(const std::vector<std::string>& names) {
  std::vector<fs::path> files;
  for (const std::string& name : names) {
    std::error_code code;
    if (!is_pattern(name) || fs::exists(name, code)) {
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

} // namespace tessera::text
