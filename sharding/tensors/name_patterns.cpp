// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensors/name_patterns.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/name_pattern.h"
#include "tessera/runtime/core/suggest.h"

#include <algorithm>
#include <utility>

namespace tessera::sharding {

namespace {

constexpr size_t kShownNames = 3;
/// Distances are not computed for more names, to bound the time for a message.
constexpr size_t kMeasuredNames = 5000;

/// Returns a path that the expression was probably meant to match.
std::string without_regex_syntax(const std::string& expression) {
  std::string plain;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char escaped = expression[++i];
      plain += escaped == 'd' ? '0' : escaped;
    } else if (std::string_view("^$()[]{}*+?|").find(c) == std::string::npos) {
      plain += c;
    }
  }
  return plain;
}

std::string_view without_impl(std::string_view type) {
  constexpr std::string_view kSuffix = "Impl";
  return type.ends_with(kSuffix) && type.size() > kSuffix.size()
             ? type.substr(0, type.size() - kSuffix.size())
             : type;
}

bool is_type(std::string_view type, std::string_view wanted) {
  if (!type.ends_with(wanted)) {
    return false;
  }
  const std::string_view scope = type.substr(0, type.size() - wanted.size());
  return scope.empty() || scope.ends_with("::");
}

} // namespace

std::string nearest_names_hint(
    std::string_view name,
    std::span<const std::string> candidates) {
  std::vector<std::pair<size_t, const std::string*>> ranked;
  for (const std::string& candidate :
       candidates.first(std::min(candidates.size(), kMeasuredNames))) {
    if (!candidate.empty()) {
      ranked.emplace_back(runtime::edit_distance(name, candidate), &candidate);
    }
  }
  std::stable_sort(
      ranked.begin(), ranked.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  std::vector<std::string> shown;
  for (const auto& [distance, candidate] : ranked) {
    if (shown.size() < kShownNames &&
        std::find(shown.begin(), shown.end(), *candidate) == shown.end()) {
      shown.push_back(*candidate);
    }
  }
  std::string text;
  for (const std::string& candidate : shown) {
    text += (text.empty() ? "" : ", ") + ("'" + candidate + "'");
  }
  if (shown.empty()) {
    return "";
  }
  return (shown.size() == 1 ? "; the nearest is " : "; the nearest are ") +
         text;
}

NamePatterns NamePatterns::of_paths(
    std::string option,
    const std::vector<std::string>& patterns) {
  NamePatterns result(std::move(option));
  for (const std::string& text : patterns) {
    TESSERA_CHECK(
        !text.empty(),
        "{}: an expression is empty; leave it out.",
        result.option_);
    result.patterns_.push_back(
        {text,
         without_regex_syntax(text),
         [pattern = runtime::NamePattern(result.option_, text)](
             const std::string& name) { return pattern.matches(name); }});
  }
  return result;
}

NamePatterns NamePatterns::of_types(
    std::string option,
    const std::vector<std::string>& names) {
  NamePatterns result(std::move(option));
  for (const std::string& text : names) {
    TESSERA_CHECK(
        !text.empty(),
        "{}: a type name is empty; leave it out.",
        result.option_);
    result.patterns_.push_back({text, text, [text](const std::string& type) {
                                  return is_type(
                                      without_impl(type), without_impl(text));
                                }});
  }
  return result;
}

std::optional<size_t> NamePatterns::first_match(const std::string& name) {
  if (patterns_.empty()) {
    return std::nullopt;
  }
  seen_.push_back(name);
  std::optional<size_t> first;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (patterns_[i].picks(name)) {
      patterns_[i].used = true;
      first = first.value_or(i);
    }
  }
  return first;
}

void NamePatterns::check_all_used() const {
  for (const Pattern& pattern : patterns_) {
    TESSERA_CHECK(
        pattern.used,
        "{}: '{}' matches nothing in the module{}.",
        option_,
        pattern.text,
        nearest_names_hint(pattern.plain, seen_));
  }
}

} // namespace tessera::sharding
