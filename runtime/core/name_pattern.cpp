// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/name_pattern.h"

#include "tessera/runtime/core/error.h"

#include <regex>

namespace tessera::runtime {

struct NamePattern::Compiled {
  std::regex expression;
};

NamePattern::NamePattern(
    std::string_view option,
    const std::string& expression) {
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

bool NamePattern::matches(std::string_view name) const {
  return std::regex_match(name.begin(), name.end(), compiled_->expression);
}

bool NamePattern::is_found_in(std::string_view name) const {
  return std::regex_search(name.begin(), name.end(), compiled_->expression);
}

} // namespace tessera::runtime
