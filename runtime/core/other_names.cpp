// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/other_names.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

namespace tessera::runtime {

namespace {

/// "a.b" of "a.b.weight"; empty without a dot.
std::string before_last_dot(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

bool is_around(std::string_view module, std::string_view path) {
  return path.size() > module.size() && path.starts_with(module) &&
         path[module.size()] == '.';
}

/// "a.b" of "a.b.c" and "a.b.d.e"; a path may be the common one.
std::string common_path(std::string a, const std::string& b) {
  while (!a.empty() && a != b && !is_around(a, b)) {
    a = before_last_dot(a);
  }
  return a;
}

} // namespace

std::vector<std::string> with_other_names(
    const std::vector<std::string>& names,
    const OtherNames& others) {
  std::vector<std::string> all = names;
  for (const std::string& name : names) {
    const auto found = others.find(name);
    if (found != others.end()) {
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
  }
  return all;
}

OtherNames other_module_names(
    const std::vector<std::string>& modules,
    const OtherNames& parameters) {
  OtherNames names;
  for (const std::string& module : modules) {
    std::set<std::string> found;
    std::optional<std::string> common;
    bool has_parts = false;
    // The map is sorted: those in the module follow each other.
    for (auto item = parameters.lower_bound(module + ".");
         item != parameters.end() && is_around(module, item->first);
         ++item) {
      has_parts = has_parts || before_last_dot(item->first) != module;
      for (const std::string& other : item->second) {
        const std::string path = before_last_dot(other);
        common = common ? common_path(*common, path) : path;
        found.insert(path);
      }
    }
    if (has_parts) {
      found.clear();
    }
    found.insert(common.value_or(""));
    found.erase("");
    for (std::string around = before_last_dot(module); !around.empty();
         around = before_last_dot(around)) {
      const auto outer = names.find(around);
      if (outer != names.end()) {
        for (const std::string& name : outer->second) {
          found.erase(name);
        }
      }
    }
    if (!found.empty()) {
      names[module].assign(found.begin(), found.end());
    }
  }
  return names;
}

} // namespace tessera::runtime
