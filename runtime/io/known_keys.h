// SPDX-License-Identifier: Apache-2.0
#pragma once
// log_ignored_keys() names the keys of a Hugging Face file that have no effect
// here.

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/io/json_file.h"

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace tessera::runtime {

/// All keys of one kind of file that the reference library knows.
struct KnownKeys {
  std::set<std::string> read; ///< they are obeyed
  /// Ignored on purpose: they say nothing about the results.
  std::set<std::string> without_effect;
  /// Not implemented, with the values that change nothing, as `null` does.
  std::map<std::string, std::vector<nlohmann::json>> neutral;
};

/// Logs a warning with the keys of a file that are not known, or not
/// implemented and not neutral: once per file and list of keys, on rank 0. Keys
/// that begin with "_" are the writer's own.
inline void log_ignored_keys(const JsonValue& fields, const KnownKeys& keys) {
  std::vector<std::string> ignored;
  for (const auto& item : fields.value().items()) {
    const std::string& key = item.key();
    if (key.starts_with("_") || keys.read.contains(key) ||
        keys.without_effect.contains(key) || item.value().is_null()) {
      continue;
    }
    bool is_neutral = false;
    if (const auto found = keys.neutral.find(key);
        found != keys.neutral.end()) {
      for (const nlohmann::json& value : found->second) {
        is_neutral = is_neutral || value == item.value();
      }
    }
    if (!is_neutral) {
      ignored.push_back(key + "=" + show_json(item.value()));
    }
  }
  if (ignored.empty() || !is_log_rank_zero()) {
    return;
  }
  const std::string text = formatted(
      "{}: ignored, because it is not implemented: {}",
      fields.place(),
      join_names(ignored));
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  if (logged.insert(text).second) {
    log_warning("{}", text);
  }
}

} // namespace tessera::runtime
