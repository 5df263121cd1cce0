// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/pattern.h"

#include "tessera/zoo/tokenizer/utf8.h"

#include <optional>

namespace tessera::zoo {

namespace {

std::optional<ByteRange> find_text(
    std::string_view wanted,
    std::string_view text,
    size_t from) {
  const size_t at = text.find(wanted, from);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  return ByteRange{
      static_cast<uint32_t>(at), static_cast<uint32_t>(at + wanted.size())};
}

template <typename Find>
void find_all_by(
    const Find& find,
    std::string_view text,
    std::vector<ByteRange>& matches) {
  size_t from = 0;
  std::optional<uint32_t> last_end;
  while (from <= text.size()) {
    const std::optional<ByteRange> match = find(from);
    if (!match) {
      return;
    }
    if (match->size() == 0 && last_end == match->end) {
      from += from < text.size() ? utf8_length(text, from) : 1;
      continue;
    }
    matches.push_back(*match);
    from = match->end;
    last_end = match->end;
  }
}

} // namespace

void Pattern::find_all(std::string_view text, std::vector<ByteRange>& matches)
    const {
  if (text.empty()) {
    return;
  }
  if (const auto* const regex = std::get_if<Regex>(&what_)) {
    find_all_by(
        [&](size_t from) { return regex->find(text, from); }, text, matches);
  } else {
    const std::string& wanted = std::get<std::string>(what_);
    find_all_by(
        [&](size_t from) { return find_text(wanted, text, from); },
        text,
        matches);
  }
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

} // namespace tessera::zoo
