// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/added_tokens.h"

#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <utility>

namespace tessera::text {

namespace {

/// Where the last code point before `at` begins; `at` > 0.
size_t before(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool is_inside_word(std::string_view text, ByteRange bytes) {
  return (bytes.begin > 0 &&
          is_word_character(code_point_at(text, before(text, bytes.begin)))) ||
         (bytes.end < text.size() &&
          is_word_character(code_point_at(text, bytes.end)));
}

} // namespace

AddedTokenFinder::AddedTokenFinder(
    std::vector<AddedToken> tokens,
    const std::vector<std::string>& texts)
    : tokens_(std::move(tokens)), nodes_(1), begins_(256) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (texts[i].empty()) {
      continue; // nothing is left of it after normalization
    }
    begins_[static_cast<unsigned char>(texts[i][0])] = true;
    uint32_t node = 0;
    for (const char byte : texts[i]) {
      const auto [found, is_new] =
          nodes_[node].next.emplace(byte, static_cast<uint32_t>(nodes_.size()));
      node = found->second;
      if (is_new) {
        nodes_.emplace_back();
      }
    }
    if (nodes_[node].token < 0) {
      nodes_[node].token = static_cast<int32_t>(i);
    }
  }
}

std::optional<std::pair<size_t, size_t>> AddedTokenFinder::match_at(
    std::string_view text,
    size_t at) const {
  std::optional<std::pair<size_t, size_t>> longest;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto next = nodes_[node].next.find(text[i]);
    if (next == nodes_[node].next.end()) {
      break;
    }
    node = next->second;
    if (nodes_[node].token >= 0) {
      longest = {static_cast<size_t>(nodes_[node].token), i + 1 - at};
    }
  }
  return longest;
}

std::vector<TextPart> AddedTokenFinder::parts_of(std::string_view text) const {
  std::vector<TextPart> parts;
  uint32_t end = 0; // of the last part
  const auto add_between = [&](uint32_t begin) {
    if (end < begin) {
      parts.push_back({{end, begin}, std::nullopt, 0, 0});
    }
  };
  for (size_t at = 0; at < text.size();) {
    const auto found = begins_[static_cast<unsigned char>(text[at])]
                           ? match_at(text, at)
                           : std::nullopt;
    if (!found) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found->first];
    ByteRange bytes{
        static_cast<uint32_t>(at), static_cast<uint32_t>(at + found->second)};
    at = bytes.end;
    if (token.is_single_word && is_inside_word(text, bytes)) {
      continue;
    }
    const ByteRange unstripped = bytes;
    if (token.strips_left) {
      while (bytes.begin > end) {
        const size_t last = before(text, bytes.begin);
        if (!is_white_space(code_point_at(text, last))) {
          break;
        }
        bytes.begin = static_cast<uint32_t>(last);
      }
    }
    if (token.strips_right) {
      while (bytes.end < text.size() &&
             is_white_space(code_point_at(text, bytes.end))) {
        bytes.end += static_cast<uint32_t>(utf8_length(text, bytes.end));
      }
    }
    bytes.begin = std::max(bytes.begin, end); // a token before may strip it
    if (bytes.begin < bytes.end) {
      add_between(bytes.begin);
      parts.push_back(
          {bytes,
           token.id,
           unstripped.begin - std::min(unstripped.begin, bytes.begin),
           bytes.end - unstripped.end});
      end = bytes.end;
    }
  }
  add_between(static_cast<uint32_t>(text.size()));
  return parts;
}

} // namespace tessera::text
