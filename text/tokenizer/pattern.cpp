// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/pattern.h"

#include "tessera/text/tokenizer/utf8.h"

#include <string>

namespace tessera::text {

namespace {

void find_all_texts(
    std::string_view wanted,
    std::string_view text,
    std::vector<ByteRange>& matches) {
  if (wanted.empty()) { // before each character, and at the end
    for (size_t at = 0; at < text.size(); at += utf8_length(text, at)) {
      matches.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at)});
    }
    const auto end = static_cast<uint32_t>(text.size());
    matches.push_back({end, end});
    return;
  }
  for (size_t at = text.find(wanted); at != std::string_view::npos;
       at = text.find(wanted, at + wanted.size())) {
    matches.push_back(
        {static_cast<uint32_t>(at), static_cast<uint32_t>(at + wanted.size())});
  }
}

} // namespace

void Pattern::find_all(std::string_view text, std::vector<ByteRange>& matches)
    const {
  if (text.empty()) {
    return;
  }
  if (const auto* const regex = std::get_if<Regex>(&label_)) {
    regex->find_all(text, matches);
  } else {
    find_all_texts(std::get<std::string>(label_), text, matches);
  }
}

bool Pattern::is_character() const {
  const auto* const text = std::get_if<std::string>(&label_);
  return text != nullptr && count_code_points(*text) == 1;
}

Pattern read_pattern(const runtime::JsonValue& section) {
  const auto text = section.find("String");
  const auto regex = section.find("Regex");
  if (text.has_value() == regex.has_value() || section.value().size() != 1) {
    section.fail(R"({"String": "..."} or {"Regex": "..."})");
  }
  return text ? Pattern(text->as<std::string>())
              : Pattern(Regex(regex->as<std::string>()));
}

char32_t read_character(const runtime::JsonValue& field) {
  const auto text = field.as<std::string>();
  if (count_code_points(text) != 1) {
    field.fail("one character");
  }
  return code_point_at(text, 0);
}

} // namespace tessera::text
