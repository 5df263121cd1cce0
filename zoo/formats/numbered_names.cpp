// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/formats/numbered_names.h"

#include <cctype>
#include <utility>

namespace tessera::zoo {

namespace {

NumberedName match_start(std::string_view pattern, std::string_view text) {
  NumberedName match;
  size_t at = 0;
  for (const char c : pattern) {
    if (c != '*') {
      if (at == text.size() || text[at] != c) {
        return {};
      }
      ++at;
      continue;
    }
    const size_t begin = at;
    while (at < text.size() &&
           std::isdigit(static_cast<unsigned char>(text[at])) != 0) {
      ++at;
    }
    if (at == begin) {
      return {};
    }
    match.numbers.emplace_back(text.substr(begin, at - begin));
  }
  match.found = true;
  match.rest = text.substr(at);
  return match;
}

} // namespace

NumberedName match_module(std::string_view pattern, std::string_view name) {
  NumberedName match = match_start(pattern, name);
  match.found = match.found && (match.rest.empty() || match.rest == ".weight" ||
                                match.rest == ".bias");
  return match;
}

bool matches_full(std::string_view pattern, std::string_view name) {
  if (pattern.ends_with('*')) {
    return match_start(pattern.substr(0, pattern.size() - 1), name).found;
  }
  const NumberedName match = match_start(pattern, name);
  return match.found && match.rest.empty();
}

std::string filled(std::string_view pattern, const NumberedName& match) {
  std::string name;
  size_t number = 0;
  for (const char c : pattern) {
    if (c == '*') {
      name += match.numbers.at(number++);
    } else {
      name += c;
    }
  }
  return name + match.rest;
}

std::string modern_name(std::string_view name) {
  std::string result(name);
  for (const auto& [old, now] :
       {std::pair(".gamma", ".weight"), std::pair(".beta", ".bias")}) {
    if (name.ends_with(old)) {
      result.replace(result.rfind('.'), std::string::npos, now);
    }
  }
  return result;
}

} // namespace tessera::zoo
