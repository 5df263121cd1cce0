// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/comm/pattern_use.h"

#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tessera::runtime {

void check_used_on_any_rank(const NamePatterns& patterns, Communicator& ranks) {
  std::map<std::string, bool> used;
  for (const std::string& text : gather_texts(
           ranks,
           nlohmann::json(patterns.uses()).dump(),
           "use of " + patterns.option())) {
    for (const auto& [pattern, is_used] :
         nlohmann::json::parse(text).get<std::map<std::string, bool>>()) {
      used[pattern] = used[pattern] || is_used;
    }
  }
  const auto unused = std::find_if(
      used.begin(), used.end(), [](const auto& one) { return !one.second; });
  if (unused == used.end()) {
    return;
  }
  std::set<std::string> all;
  for (const std::string& text :
       gather_texts(ranks, nlohmann::json(patterns.names()).dump(), "names")) {
    for (auto& name :
         nlohmann::json::parse(text).get<std::vector<std::string>>()) {
      all.insert(std::move(name));
    }
  }
  TESSERA_FAIL(
      "{}: '{}' matches nothing in the module, on any pipeline stage{}.",
      patterns.option(),
      unused->first,
      patterns.nearest_hint(unused->first, {all.begin(), all.end()}));
}

} // namespace tessera::runtime
