// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tokenizer/aligned_text.h"

#include "tessera/zoo/tokenizer/utf8.h"

#include <algorithm>
#include <utility>

namespace tessera::zoo {

AlignedText::AlignedText(
    std::string_view text,
    uint32_t offset,
    bool keeps_origins)
    : text_(text),
      words_{{0, static_cast<uint32_t>(text.size())}},
      keeps_origins_(keeps_origins) {
  if (!keeps_origins) {
    return;
  }
  origins_.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto begin = static_cast<uint32_t>(offset + i);
    origins_.insert(
        origins_.end(),
        length,
        ByteRange{begin, begin + static_cast<uint32_t>(length)});
    i += length;
  }
}

ByteRange AlignedText::origin(ByteRange range) const {
  if (range.size() > 0) {
    return {origins_[range.begin].begin, origins_[range.end - 1].end};
  }
  const uint32_t at = range.begin == 0 ? 0 : origins_[range.begin - 1].end;
  return {at, at};
}

AlignedText AlignedText::part(ByteRange range) const {
  AlignedText result = *this;
  result.text_ = text_.substr(range.begin, range.size());
  if (keeps_origins_) {
    result.origins_.assign(
        origins_.begin() + range.begin, origins_.begin() + range.end);
  }
  result.words_ = {{0, range.size()}};
  return result;
}

void AlignedText::append_rewritten(
    ByteRange from,
    const std::vector<Rewritten>& code_points,
    size_t skipped,
    std::string& text,
    std::vector<ByteRange>& origins) const {
  size_t at = from.begin; // next code point of the old text
  const auto skip = [&](size_t count) {
    for (size_t i = 0; i < count && at < from.end; ++i) {
      at += utf8_length(text_, at);
    }
  };
  skip(skipped);
  for (const Rewritten& now : code_points) {
    const size_t before = text.size();
    append_utf8(text, now.code_point);
    if (keeps_origins_) {
      ByteRange origin;
      if (now.change <= 0) {
        origin = at < from.end ? origins_[at] : ByteRange{};
      } else if (at > from.begin) {
        origin = origins_[at - 1];
      }
      origins.insert(origins.end(), text.size() - before, origin);
    }
    if (now.change <= 0) {
      skip(1 + static_cast<size_t>(-now.change));
    }
  }
}

void AlignedText::append_unchanged(
    ByteRange from,
    std::string& text,
    std::vector<ByteRange>& origins) const {
  text.append(text_, from.begin, from.size());
  if (keeps_origins_) {
    origins.insert(
        origins.end(),
        origins_.begin() + from.begin,
        origins_.begin() + from.end);
  }
}

void AlignedText::rewrite(
    const std::vector<Rewritten>& code_points,
    size_t skipped) {
  std::string text;
  text.reserve(text_.size());
  std::vector<ByteRange> origins;
  const ByteRange all{0, static_cast<uint32_t>(text_.size())};
  append_rewritten(all, code_points, skipped, text, origins);
  text_ = std::move(text);
  origins_ = std::move(origins);
  words_ = {{0, static_cast<uint32_t>(text_.size())}};
}

void AlignedText::rewrite_words(
    const std::function<size_t(std::string_view, std::vector<Rewritten>&)>&
        edit) {
  std::string text;
  text.reserve(text_.size() + words_.size());
  std::vector<ByteRange> origins;
  std::vector<ByteRange> words;
  words.reserve(words_.size());
  std::vector<Rewritten> code_points;
  for (size_t i = 0; i < words_.size(); ++i) {
    const auto begin = static_cast<uint32_t>(text.size());
    code_points.clear();
    const size_t skipped = edit(word(i), code_points);
    if (skipped == kUnchanged) {
      append_unchanged(words_[i], text, origins);
    } else {
      append_rewritten(words_[i], code_points, skipped, text, origins);
    }
    const auto end = static_cast<uint32_t>(text.size());
    if (end > begin) {
      words.push_back({begin, end});
    }
  }
  text_ = std::move(text);
  origins_ = std::move(origins);
  words_ = std::move(words);
}

void AlignedText::split_words(
    const std::function<void(std::string_view, std::vector<ByteRange>&)>& cut) {
  std::vector<ByteRange> words;
  words.reserve(words_.size() * 2);
  std::vector<ByteRange> parts;
  for (size_t i = 0; i < words_.size(); ++i) {
    parts.clear();
    cut(word(i), parts);
    const uint32_t begin = words_[i].begin;
    for (const ByteRange& part : parts) {
      if (part.size() > 0) {
        words.push_back({begin + part.begin, begin + part.end});
      }
    }
  }
  words_ = std::move(words);
}

} // namespace tessera::zoo
