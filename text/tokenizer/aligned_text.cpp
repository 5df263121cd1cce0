// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/aligned_text.h"

#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <utility>

namespace tessera::text {

namespace {

/// Appends the origin of each byte of a code point.
void append_origins(
    std::vector<ByteRange>& origins,
    size_t length,
    ByteRange origin) {
  for (size_t i = 0; i < length; ++i) { // faster than insert() for so few
    origins.push_back(origin);
  }
}

} // namespace

AlignedText::AlignedText(
    std::string_view text,
    uint32_t offset,
    bool keeps_origins)
    : text_(text),
      words_{{0, static_cast<uint32_t>(text.size())}},
      offset_(offset),
      keeps_origins_(keeps_origins) {
  if (offset == 0 && !text.empty()) {
    first_end_ = static_cast<uint32_t>(utf8_length(text, 0));
  }
  if (!keeps_origins) {
    return;
  }
  origins_.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto begin = static_cast<uint32_t>(offset + i);
    append_origins(
        origins_, length, {begin, begin + static_cast<uint32_t>(length)});
    i += length;
  }
}

ByteRange AlignedText::origin(ByteRange range) const {
  if (range.size() > 0) {
    return {origins_[range.begin].begin, origins_[range.end - 1].end};
  }
  const uint32_t at =
      range.begin == 0 ? offset_ : origins_[range.begin - 1].end;
  return {at, at};
}

ByteRange AlignedText::origin_before(ByteRange word) const {
  const uint32_t at =
      is_divided_ && word.size() > 0 ? origins_[word.begin].begin : offset_;
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
  result.offset_ = range.begin == 0 ? offset_ : std::max(offset_, 1U);
  result.first_end_ = range.begin < first_end_
                          ? std::min(first_end_, range.end) - range.begin
                          : 0;
  return result;
}

void AlignedText::append_rewritten(
    ByteRange from,
    const std::vector<Rewritten>& code_points,
    size_t skipped,
    Rewriting& to) const {
  size_t at = from.begin; // next code point of the old text
  const auto skip = [&](size_t count) {
    for (size_t i = 0; i < count && at < from.end; ++i) {
      at += utf8_length(text_, at);
    }
  };
  skip(skipped);
  size_t i = 0;
  for (; i < code_points.size(); ++i) {
    if (!keeps_origins_ && at > first_end_) {
      break; // nothing depends on where it stands
    }
    const Rewritten& now = code_points[i];
    const size_t before = to.text.size();
    append_utf8(to.text, now.code_point);
    const bool is_inserted = now.change > 0;
    const bool is_at_begin = is_inserted && at == from.begin;
    const size_t source = is_inserted && !is_at_begin ? at - 1 : at;
    if (source < first_end_) {
      to.first_end = static_cast<uint32_t>(to.text.size());
    }
    if (keeps_origins_) {
      const ByteRange origin = is_at_begin         ? origin_before(from)
                               : source < from.end ? origins_[source]
                                                   : ByteRange{};
      append_origins(to.origins, to.text.size() - before, origin);
    }
    if (!is_inserted) {
      skip(1 + static_cast<size_t>(-now.change));
    }
  }
  for (; i < code_points.size(); ++i) {
    append_utf8(to.text, code_points[i].code_point);
  }
}

void AlignedText::append_unchanged(ByteRange from, Rewriting& to) const {
  if (from.begin < first_end_) {
    to.first_end = static_cast<uint32_t>(
        to.text.size() + std::min(from.end, first_end_) - from.begin);
  }
  to.text.append(text_, from.begin, from.size());
  if (keeps_origins_) {
    to.origins.insert(
        to.origins.end(),
        origins_.begin() + from.begin,
        origins_.begin() + from.end);
  }
}

void AlignedText::finish(Rewriting&& rewriting) {
  text_ = std::move(rewriting.text);
  origins_ = std::move(rewriting.origins);
  first_end_ = rewriting.first_end;
}

void AlignedText::rewrite(
    const std::vector<Rewritten>& code_points,
    size_t skipped) {
  Rewriting to;
  to.text.reserve(text_.size());
  to.origins.reserve(keeps_origins_ ? text_.size() : 0);
  const ByteRange all{0, static_cast<uint32_t>(text_.size())};
  append_rewritten(all, code_points, skipped, to);
  finish(std::move(to));
  words_ = {{0, static_cast<uint32_t>(text_.size())}};
}

void AlignedText::replace(
    const std::vector<ByteRange>& parts,
    std::string_view by) {
  Rewriting to;
  to.text.reserve(text_.size() + parts.size() * by.size());
  to.origins.reserve(keeps_origins_ ? to.text.capacity() : 0);
  uint32_t kept_from = 0;
  for (const ByteRange& part : parts) {
    append_unchanged({kept_from, part.begin}, to);
    to.text.append(by);
    if (part.end == 0 ? offset_ == 0 : part.end <= first_end_) {
      to.first_end = static_cast<uint32_t>(to.text.size());
    }
    if (keeps_origins_) {
      to.origins.insert(
          to.origins.end(),
          by.size(),
          part.end == 0 ? ByteRange{offset_, offset_} : origins_[part.end - 1]);
    }
    kept_from = part.end;
  }
  append_unchanged({kept_from, static_cast<uint32_t>(text_.size())}, to);
  finish(std::move(to));
  words_ = {{0, static_cast<uint32_t>(text_.size())}};
}

void AlignedText::rewrite_words(
    const std::function<size_t(std::string_view, std::vector<Rewritten>&)>&
        edit) {
  Rewriting to;
  to.text.reserve(text_.size() + words_.size());
  to.origins.reserve(keeps_origins_ ? to.text.capacity() : 0);
  std::vector<ByteRange> words;
  words.reserve(words_.size());
  std::vector<Rewritten> code_points;
  for (size_t i = 0; i < words_.size(); ++i) {
    const auto begin = static_cast<uint32_t>(to.text.size());
    code_points.clear();
    const size_t skipped = edit(word(i), code_points);
    if (skipped == kUnchanged) {
      append_unchanged(words_[i], to);
    } else {
      append_rewritten(words_[i], code_points, skipped, to);
    }
    const auto end = static_cast<uint32_t>(to.text.size());
    if (end > begin) {
      words.push_back({begin, end});
    }
  }
  finish(std::move(to));
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
  is_divided_ = true;
}

} // namespace tessera::text
