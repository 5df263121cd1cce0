// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/config_paths.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/hub/hub_name.h"
#include "tessera/tasks/run_folder.h"

#include <nlohmann/json.hpp>

#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <system_error>

namespace tessera::tasks {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// "section.key"; `[]` stands for the elements of an array.
constexpr std::array<std::string_view, 12> kReadPaths{
    "model.folder",
    "model.config",
    "model.start_from.path",
    "distill.model.folder",
    "preference.reference.folder",
    "data.train",
    "data.train[]",
    "data.heldout",
    "data.heldout[]",
    "data.blend[].path",
    "data.tokenizer",
    "data.mask.words"};

/// Whether there is a file, or the beginning of a pattern's, or a token file
/// that is named without its suffix.
bool has_data(const fs::path& path) {
  const std::string text = path.string();
  const size_t wildcard = text.find_first_of("*?[");
  const fs::path fixed = wildcard == std::string::npos
                             ? path
                             : fs::path(text.substr(0, wildcard)).parent_path();
  std::error_code code;
  return fs::exists(fixed, code) ||
         (wildcard == std::string::npos && fs::exists(text + ".idx", code));
}

std::string resolved_path(
    const std::string& value,
    const fs::path& file,
    std::string_view key) {
  const fs::path given(value);
  if (value.empty() || given.is_absolute() || runtime::is_hub_name(value)) {
    return value;
  }
  const std::string beside =
      (file.parent_path() / given).lexically_normal().string();
  if (beside == value || has_data(beside) || !has_data(given)) {
    return beside;
  }
  // A search of plans reads a configuration many times.
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  if (is_log_rank_zero() && logged.insert(beside).second) {
    log_info(
        "{} '{}' in '{}' is that of the working directory: there is no '{}', as paths in a configuration are relative to its folder",
        key,
        value,
        file.string(),
        beside);
  }
  return value;
}

/// Changes the paths that a key names. Calls itself for the rest of a key.
void change_paths(
    json& value,
    std::string_view rest,
    const std::function<std::string(const std::string& path)>& change) {
  if (rest.empty()) {
    if (value.is_string()) {
      value = change(value.get<std::string>());
    }
    return;
  }
  if (rest.starts_with("[]")) {
    rest.remove_prefix(rest.starts_with("[].") ? 3 : 2);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
      change_paths(value[i], rest, change);
    }
    return;
  }
  const size_t end = rest.find_first_of(".[");
  const auto found = value.is_object()
                         ? value.find(std::string(rest.substr(0, end)))
                         : value.end();
  if (value.is_object() && found != value.end()) {
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end);
    rest.remove_prefix(rest.starts_with(".") ? 1 : 0);
    change_paths(*found, rest, change);
  }
}

} // namespace

void resolve_config_paths(json& root, const fs::path& file) {
  if (file.filename() == "config.json" && is_run_folder(file.parent_path())) {
    return;
  }
  for (const std::string_view key : kReadPaths) {
    change_paths(root, key, [&](const std::string& path) {
      return resolved_path(path, file, key);
    });
  }
}

void express_config_paths(json& root, const fs::path& folder) {
  for (const std::string_view key : kReadPaths) {
    change_paths(root, key, [&](const std::string& path) {
      return path.empty() || fs::path(path).is_absolute() ||
                     runtime::is_hub_name(path)
                 ? path
                 : fs::relative(path, folder).string();
    });
  }
}

} // namespace tessera::tasks
