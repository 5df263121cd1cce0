// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/name_patterns.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

#include <regex>
#include <utility>

namespace tessera::runtime {

namespace {

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

std::string expression_of_glob(const std::string& glob) {
  std::string expression;
  for (const char c : glob) {
    if (c == '*') {
      expression += "[^.]*";
    } else {
      expression +=
          std::string_view("^$()[]{}+?|.\\").find(c) == std::string::npos
              ? ""
              : "\\";
      expression += c;
    }
  }
  return expression;
}

} // namespace

struct NamePattern::Compiled {
  std::regex expression;
};

NamePattern::NamePattern(std::string_view option, const std::string& expression)
    : text_(expression) {
  TESSERA_CHECK(
      !expression.empty(), "{}: an expression is empty; leave it out.", option);
  try {
    compiled_ = std::make_shared<Compiled>(Compiled{std::regex(expression)});
  } catch (const std::regex_error& error) {
    TESSERA_FAIL(
        "{}: '{}' is not a valid regular expression (ECMAScript): {}. Write a dot as \\. and any number as \\d+.",
        option,
        expression,
        error.what());
  }
}

NamePattern NamePattern::of_type(std::string name) {
  return {Kind::kType, std::move(name)};
}

NamePattern NamePattern::of_glob(const std::string& glob) {
  NamePattern pattern(Kind::kGlob, glob);
  pattern.compiled_ = std::make_shared<Compiled>(
      Compiled{std::regex(expression_of_glob(glob))});
  return pattern;
}

bool NamePattern::matches(std::string_view name) const {
  return kind_ == Kind::kType
             ? is_type(without_impl(name), without_impl(text_))
             : std::regex_match(
                   name.begin(), name.end(), compiled_->expression);
}

bool NamePattern::is_found_in(std::string_view name) const {
  return std::regex_search(name.begin(), name.end(), compiled_->expression);
}

std::optional<std::string> NamePattern::replaced(
    std::string_view name,
    const std::string& replacement) const {
  std::match_results<std::string_view::const_iterator> match;
  return std::regex_match(
             name.begin(), name.end(), match, compiled_->expression)
             ? std::optional(match.format(replacement))
             : std::nullopt;
}

std::string NamePattern::nearest_hint(
    const std::vector<std::string>& names) const {
  const std::string nearest = nearest_names_hint(
      kind_ == Kind::kExpression ? without_regex_syntax(text_) : text_, names);
  return kind_ == Kind::kGlob ? nearest + "; a `*` matches text without dots"
                              : nearest;
}

NamePatterns::NamePatterns(
    std::string option,
    const std::vector<std::string>& expressions)
    : option_(std::move(option)) {
  for (const std::string& expression : expressions) {
    add(expression);
  }
}

void NamePatterns::add(const std::string& expression) {
  add(NamePattern(option_, expression));
}

void NamePatterns::add(NamePattern pattern) {
  patterns_.push_back({std::move(pattern)});
}

void NamePatterns::add_type(const std::string& name) {
  TESSERA_CHECK(
      !name.empty(), "{}: a type name is empty; leave it out.", option_);
  add(NamePattern::of_type(name));
}

void NamePatterns::add_glob(const std::string& glob) {
  add(NamePattern::of_glob(glob));
}

bool NamePatterns::matches(size_t i, const std::string& name) {
  Entry& entry = patterns_[i];
  const bool found = entry.pattern.matches(name);
  if (found) {
    entry.used = true;
  } else if (!entry.used) {
    entry.seen.push_back(name);
  }
  return found;
}

std::optional<size_t> NamePatterns::first_match(const std::string& name) {
  std::optional<size_t> first;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (matches(i, name)) {
      first = first.value_or(i);
    }
  }
  return first;
}

std::vector<std::string> NamePatterns::unused() const {
  std::vector<std::string> texts;
  for (const Entry& entry : patterns_) {
    if (!entry.used) {
      texts.push_back(entry.pattern.text());
    }
  }
  return texts;
}

std::map<std::string, bool> NamePatterns::uses() const {
  std::map<std::string, bool> uses;
  for (const Entry& entry : patterns_) {
    uses[entry.pattern.text()] = uses[entry.pattern.text()] || entry.used;
  }
  return uses;
}

std::vector<std::string> NamePatterns::names() const {
  std::set<std::string> names;
  for (const Entry& entry : patterns_) {
    names.insert(entry.seen.begin(), entry.seen.end());
  }
  return {names.begin(), names.end()};
}

std::string NamePatterns::nearest_hint(
    const std::string& text,
    const std::vector<std::string>& names) const {
  for (const Entry& entry : patterns_) {
    if (entry.pattern.text() == text) {
      return entry.pattern.nearest_hint(names);
    }
  }
  return NamePattern(option_, text).nearest_hint(names);
}

void NamePatterns::check_all_used() const {
  for (const Entry& entry : patterns_) {
    TESSERA_CHECK(
        entry.used,
        "{}: '{}' matches nothing in the module{}.",
        option_,
        entry.pattern.text(),
        entry.pattern.nearest_hint(entry.seen));
  }
}

} // namespace tessera::runtime
