// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/bert_normalizer.h"

#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/rewriting.h"
#include "tessera/text/tokenizer/unicode_form.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <vector>

namespace tessera::text {

namespace {

constexpr char32_t kReplacementCharacter = 0xfffd;

void clean(AlignedText& text) {
  const auto is_clean = [](char c) { return c >= ' ' && c < 0x7f; };
  if (std::all_of(text.text().begin(), text.text().end(), is_clean)) {
    return;
  }
  keep_code_points(
      text,
      [](char32_t c) { return c != kReplacementCharacter && !is_control(c); },
      [](char32_t c) { return is_white_space(c) ? U' ' : c; });
}

} // namespace

void BertNormalizer::apply(AlignedText& text) const {
  if (options_.clean_text) {
    clean(text);
  }
  if (options_.handle_chinese_chars && !is_ascii(text.text())) {
    map_code_points(text, [](char32_t c, std::vector<Rewritten>& now) {
      if (!is_chinese(c)) {
        now.push_back({c, 0});
        return;
      }
      now.push_back({' ', 0});
      now.push_back({c, 1});
      now.push_back({' ', 1});
    });
  }
  if (options_.strip_accents && !is_ascii(text.text())) {
    rewrite_in_form(UnicodeForm::kNfd, text);
    keep_code_points(
        text,
        [](char32_t c) { return !is_nonspacing_mark(c); },
        [](char32_t c) { return c; });
  }
  if (options_.lowercase) {
    map_code_points(text, append_lower_case);
  }
}

void BertPreTokenizer::apply(AlignedText& text) const {
  text.split_words([](std::string_view word, std::vector<ByteRange>& parts) {
    uint32_t begin = 0;
    for_each_code_point(word, [&](char32_t c, size_t at) {
      const bool is_space = is_white_space(c);
      if (!is_space && !is_punctuation(c)) {
        return;
      }
      const auto from = static_cast<uint32_t>(at);
      const auto to = static_cast<uint32_t>(at + utf8_length(word, at));
      parts.push_back({begin, from});
      if (!is_space) {
        parts.push_back({from, to});
      }
      begin = to;
    });
    parts.push_back({begin, static_cast<uint32_t>(word.size())});
  });
}

} // namespace tessera::text
