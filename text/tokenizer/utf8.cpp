// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>

namespace tessera::text {

namespace {

/// How many bytes at `at` are a code point, or the longest beginning of one.
struct Sequence {
  size_t length = 0;
  bool is_complete = false;
  bool is_cut_off = false; ///< by the end of the text
};

Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<unsigned char>(text[at + i]);
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {1, true, false};
  }
  const size_t wanted = lead >= 0xc2 && lead <= 0xdf   ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (wanted == 0) {
    return {1, false, false};
  }
  // Overlong forms, surrogates and what is above U+10FFFF show in byte 1.
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < wanted; ++i) {
    if (at + i == text.size()) {
      return {i, false, true};
    }
    const bool fits =
        i == 1 ? byte(1) >= least && byte(1) <= most : (byte(i) & 0xc0) == 0x80;
    if (!fits) {
      return {i, false, false};
    }
  }
  return {wanted, true, false};
}

} // namespace

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) {
    text.push_back(static_cast<char>(byte));
  };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6);
    put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3f));
    put(0x80 | (c >> 6 & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

std::optional<size_t> first_not_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.is_complete) {
      return at;
    }
    at += sequence.length;
  }
  return std::nullopt;
}

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  size_t at = 0;
  while (at < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.is_complete) {
      break;
    }
    at += sequence.length;
  }
  if (at == text.size()) {
    return text;
  }
  storage.assign(text.substr(0, at));
  while (at < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    storage.append(
        sequence.is_complete ? text.substr(at, sequence.length)
                             : kReplacementUtf8);
    at += sequence.length;
  }
  return storage;
}

bool ends_within_code_point(std::string_view text) {
  const size_t from = text.size() - std::min<size_t>(3, text.size());
  for (size_t at = from; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80 &&
        sequence_at(text, at).is_cut_off) {
      return true;
    }
  }
  return false;
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
      }));
}

} // namespace tessera::text
