// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/character_map.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/graphemes.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>

namespace tessera::text {

namespace {

/// Longer graphemes are mapped code point by code point.
constexpr size_t kMostGraphemeBytes = 5;

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i]))
             << (8 * i);
  }
  return value;
}

// A unit of a double array of Darts-clone: the label that leads to it, or a
// value; whether a value is among its children; where those are.
constexpr uint32_t kIsValue = uint32_t{1} << 31;

uint32_t label_of(uint32_t unit) {
  return unit & (kIsValue | 0xff);
}
bool has_value(uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
uint32_t offset_of(uint32_t unit) {
  return unit >> 10 << ((unit & (uint32_t{1} << 9)) >> 6);
}

/// Appends `by` for `old`: further code points are inserted, those that are too
/// many are gone after the last one.
void append_instead(
    std::string_view old,
    std::string_view by,
    std::vector<Rewritten>& code_points) {
  const auto had = static_cast<int>(count_code_points(old));
  int has = 0;
  for_each_code_point(by, [&](char32_t c, size_t) {
    code_points.push_back({c, 0});
    ++has;
  });
  for (int i = 0; i < has - had; ++i) {
    code_points[code_points.size() - 1 - i].change = 1;
  }
  if (has < had && !code_points.empty()) {
    code_points.back().change -= had - has;
  }
}

} // namespace

CharacterMap::CharacterMap(std::string_view bytes) {
  TESSERA_CHECK(
      bytes.size() >= 4,
      "precompiled_charsmap has {} bytes, and its first 4 are the size of its table; load a complete file",
      bytes.size());
  const size_t table_bytes = little_endian(bytes, 0);
  TESSERA_CHECK(
      table_bytes >= 4 && table_bytes % 4 == 0 &&
          table_bytes <= bytes.size() - 4,
      "precompiled_charsmap has {} bytes after its size, and a table of {} bytes, which must be a multiple of 4 in them; load a complete file",
      bytes.size() - 4,
      table_bytes);
  units_.reserve(table_bytes / 4);
  for (size_t i = 0; i < table_bytes; i += 4) {
    units_.push_back(little_endian(bytes, 4 + i));
  }
  replacements_ = bytes.substr(4 + table_bytes);
  std::string storage;
  TESSERA_CHECK(
      valid_utf8(replacements_, storage).data() == replacements_.data(),
      "the replacements of precompiled_charsmap are no UTF-8; load a complete file");
  for (size_t c = 0; c < replaces_ascii_.size(); ++c) {
    const char text = static_cast<char>(c);
    replaces_ascii_[c] = search({&text, 1}, Which::kShortest).has_value();
  }
}

uint32_t CharacterMap::unit(size_t at) const {
  TESSERA_CHECK(
      at < units_.size(),
      "the table of precompiled_charsmap has {} entries and refers to entry {}: it is corrupt; load a complete file",
      units_.size(),
      at);
  return units_[at];
}

std::optional<Mapped> CharacterMap::search(std::string_view text, Which which)
    const {
  std::optional<Mapped> found;
  size_t node = offset_of(unit(0));
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) {
      break;
    }
    node ^= byte;
    const uint32_t here = unit(node);
    if (label_of(here) != byte) {
      break;
    }
    node ^= offset_of(here);
    if (!has_value(here)) {
      continue;
    }
    const size_t at = unit(node) & ~kIsValue;
    TESSERA_CHECK(
        at < replacements_.size() &&
            (static_cast<unsigned char>(replacements_[at]) & 0xc0) != 0x80,
        "precompiled_charsmap has {} bytes of replacements and refers to byte {}, which begins none: it is corrupt; load a complete file",
        replacements_.size(),
        at);
    const size_t end = replacements_.find('\0', at);
    found = {i + 1, std::string_view(replacements_).substr(at, end - at)};
    if (which == Which::kShortest) {
      break;
    }
  }
  return found;
}

std::optional<std::string_view> CharacterMap::find(
    std::string_view text) const {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80 && text.size() == 1 && !replaces_ascii_[first]) {
    return std::nullopt;
  }
  const std::optional<Mapped> found = search(text, Which::kShortest);
  return found ? std::optional(found->by) : std::nullopt;
}

bool CharacterMap::append_replaced(
    std::string_view text,
    std::vector<Rewritten>& code_points) const {
  const std::optional<std::string_view> by = find(text);
  if (by) {
    append_instead(text, *by, code_points);
  }
  return by.has_value();
}

bool CharacterMap::append_mapped(
    std::string_view text,
    std::vector<Rewritten>& code_points) const {
  bool is_replaced = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = grapheme_end(text, at);
    const std::string_view grapheme = text.substr(at, end - at);
    at = end;
    if (grapheme.size() <= kMostGraphemeBytes &&
        append_replaced(grapheme, code_points)) {
      is_replaced = true;
      continue;
    }
    for_each_code_point(grapheme, [&](char32_t c, size_t i) {
      if (append_replaced(
              grapheme.substr(i, utf8_length(grapheme, i)), code_points)) {
        is_replaced = true;
      } else {
        code_points.push_back({c, 0});
      }
    });
  }
  return is_replaced;
}

std::string decode_base64(std::string_view text, std::string_view place) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> value_of{};
  value_of.fill(-1);
  for (size_t i = 0; i < kDigits.size(); ++i) {
    value_of[static_cast<unsigned char>(kDigits[i])] = static_cast<int8_t>(i);
  }
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  TESSERA_CHECK(
      text.size() % 4 == 0,
      "{} has {} characters, which is no base64: their number must be a multiple of 4; load a complete file",
      place,
      text.size());
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_padding = i >= text.size() - padding;
    const int8_t value =
        is_padding ? 0 : value_of[static_cast<unsigned char>(text[i])];
    TESSERA_CHECK(
        value >= 0,
        "character {} of {} is no digit of base64; load a complete file",
        i,
        place);
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (i % 4 != 3) {
      continue;
    }
    const size_t count = i + 1 < text.size() ? 3 : 3 - padding;
    for (size_t byte = 0; byte < count; ++byte) {
      bytes.push_back(static_cast<char>(bits >> (16 - 8 * byte) & 0xff));
    }
    bits = 0;
  }
  return bytes;
}

} // namespace tessera::text
