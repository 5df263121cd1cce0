// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/decoder.h"

#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/pattern.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <utility>

namespace tessera::text {

namespace {

using runtime::JsonValue;

void replace_all(
    std::string& text,
    std::string_view search,
    std::string_view by) {
  if (search.empty()) {
    return;
  }
  std::string replaced;
  size_t begin = 0;
  for (size_t at = text.find(search); at != text.npos;
       at = text.find(search, begin)) {
    replaced.append(text, begin, at - begin).append(by);
    begin = at + search.size();
  }
  text = replaced.append(text, begin);
}

/// A text, and what it becomes.
using CleanUpRule = std::pair<std::string_view, std::string_view>;

/// The spaces before English punctuation and contractions, in the order of
/// transformers.
constexpr std::array<CleanUpRule, 10> kCleanUp{
    {{" .", "."},
     {" ?", "?"},
     {" !", "!"},
     {" ,", ","},
     {" ' ", "'"},
     {" n't", "n't"},
     {" 'm", "'m"},
     {" 's", "'s"},
     {" 've", "'ve"},
     {" 're", "'re"}}};

/// As the `tokenizers` library does, which has one rule more.
void clean_up(std::string& text) {
  for (const auto& [search, by] : kCleanUp) {
    replace_all(text, search, by);
    if (search == " 'm") {
      replace_all(text, " do not", " don't");
    }
  }
}

std::string joined(const std::vector<std::string>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::string());
}

/// Turns the characters of bytes into bytes; all parts become one.
class ByteLevelDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::string bytes;
    for (const std::string& part : parts) {
      bytes += bytes_of_token(part).value_or(part);
    }
    parts.assign(1, std::move(bytes));
  }

  bool joins() const override {
    return true;
  }
};

/// Joins pieces with their prefix to the word before, others with a space.
class WordPieceDecoder : public TokenDecoder {
 public:
  explicit WordPieceDecoder(const JsonValue& section)
      : prefix_(section.at("prefix").as<std::string>()),
        cleans_up_(section.at("cleanup").as<bool>()) {}

  void apply(std::vector<std::string>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string& part = parts[i];
      if (i > 0) {
        if (part.compare(0, prefix_.size(), prefix_) == 0) {
          part.erase(0, prefix_.size());
        } else {
          part.insert(0, " ");
        }
      }
      if (cleans_up_) {
        clean_up(part);
      }
    }
  }

 private:
  std::string prefix_;
  bool cleans_up_;
};

/// Turns the replacement character into spaces; at the beginning it goes.
class MetaspaceDecoder : public TokenDecoder {
 public:
  explicit MetaspaceDecoder(const JsonValue& section)
      : replacement_(read_character(section.at("replacement"))) {
    // Older files have `add_prefix_space` in place of `prepend_scheme`.
    const bool adds = section.get_or("add_prefix_space", true);
    prepends_ = section.get_or<std::string>(
                    "prepend_scheme", adds ? "always" : "never") != "never";
  }

  void apply(std::vector<std::string>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string text;
      for_each_code_point(parts[i], [&](char32_t c, size_t) {
        if (c != replacement_) {
          append_utf8(text, c);
        } else if (i > 0 || !prepends_) {
          text.push_back(' ');
        }
      });
      parts[i] = std::move(text);
    }
  }

 private:
  char32_t replacement_;
  bool prepends_ = true;
};

/// Turns the suffix of words into a space, but after the last word.
class SuffixDecoder : public TokenDecoder {
 public:
  explicit SuffixDecoder(const JsonValue& section)
      : suffix_(section.at("suffix").as<std::string>()) {}

  void apply(std::vector<std::string>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      replace_all(parts[i], suffix_, i + 1 == parts.size() ? "" : " ");
    }
  }

  /// With a suffix that is not at its end, the last token is another one as
  /// soon as one follows.
  bool may_change(const std::vector<std::string>& parts) const override {
    std::string last = parts.back();
    std::string followed = last;
    replace_all(last, suffix_, "");
    replace_all(followed, suffix_, " ");
    return !followed.starts_with(last);
  }

 private:
  std::string suffix_;
};

/// Turns runs of tokens of bytes into their text, or each byte into U+FFFD if
/// they are none.
class ByteFallbackDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::vector<std::string> results;
    std::string bytes;
    const auto flush = [&] {
      std::string storage;
      if (valid_utf8(bytes, storage).data() == bytes.data()) {
        if (!bytes.empty()) {
          results.push_back(bytes);
        }
      } else {
        results.insert(
            results.end(), bytes.size(), std::string(kReplacementUtf8));
      }
      bytes.clear();
    };
    for (std::string& part : parts) {
      if (const auto byte = byte_of_token(part)) {
        bytes.push_back(static_cast<char>(*byte));
      } else {
        flush();
        results.push_back(std::move(part));
      }
    }
    flush();
    parts = std::move(results);
  }

  bool may_change(const std::vector<std::string>& parts) const override {
    return byte_of_token(parts.back()).has_value();
  }
};

/// Makes one part of all.
class FuseDecoder : public TokenDecoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    parts.assign(1, joined(parts));
  }

  bool joins() const override {
    return true;
  }
  bool takes_joined() const override {
    return true;
  }
};

/// Takes up to so many of a character from both ends of every part.
class StripDecoder : public TokenDecoder {
 public:
  explicit StripDecoder(const JsonValue& section)
      : start_(section.at("start").integer()),
        stop_(section.at("stop").integer()) {
    append_utf8(content_, read_character(section.at("content")));
  }

  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) {
      std::string_view text = part;
      for (int64_t i = 0; i < start_ && text.starts_with(content_); ++i) {
        text.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && text.ends_with(content_); ++i) {
        text.remove_suffix(content_.size());
      }
      part = std::string(text);
    }
  }

  /// What is not taken ends the beginning.
  bool is_context(const std::vector<std::string>& parts) const override {
    return start_ <= 0 ||
           std::any_of(
               parts.begin(), parts.end(), [this](const std::string& part) {
                 std::string_view text = part;
                 while (text.starts_with(content_)) {
                   text.remove_prefix(content_.size());
                 }
                 return !text.empty();
               });
  }
  bool takes_joined() const override {
    return true;
  }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
};

/// Replaces what a pattern matches in every part.
class ReplaceDecoder : public TokenDecoder {
 public:
  explicit ReplaceDecoder(const JsonValue& section)
      : pattern_(read_pattern(section.at("pattern"))),
        by_(section.at("content").as<std::string>()) {}

  void apply(std::vector<std::string>& parts) const override {
    std::vector<ByteRange> matches;
    for (std::string& part : parts) {
      matches.clear();
      pattern_.find_all(part, matches);
      std::string result;
      size_t end = 0;
      for (const ByteRange& match : matches) {
        result.append(part, end, match.begin - end);
        result += by_;
        end = match.end;
      }
      result.append(part, end);
      part = std::move(result);
    }
  }

  /// One character is in one token; more may be in several.
  bool takes_joined() const override {
    return pattern_.is_character();
  }

 private:
  Pattern pattern_;
  std::string by_;
};

/// Joins what connectionist temporal classification repeats or leaves blank.
class CtcDecoder : public TokenDecoder {
 public:
  explicit CtcDecoder(const JsonValue& section)
      : pad_(section.at("pad_token").as<std::string>()),
        delimiter_(section.at("word_delimiter_token").as<std::string>()),
        cleans_up_(section.at("cleanup").as<bool>()) {}

  void apply(std::vector<std::string>& parts) const override {
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    for (std::string& part : parts) {
      replace_all(part, pad_, "");
      if (cleans_up_) {
        clean_up(part);
        replace_all(part, delimiter_, " ");
      }
    }
  }

 private:
  std::string pad_;
  std::string delimiter_;
  bool cleans_up_;
};

/// Whether a match of a rule of kCleanUp, or of one in what others leave, may
/// begin in `text` and end behind it. Rules begin with a space and take out
/// nothing but spaces, so the last character stays, and is none of the last
/// ones of a match.
bool ends_in_rule(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  const auto follows = [text](std::string_view characters) {
    return text.size() > 1 &&
           characters.find(text[text.size() - 2]) != characters.npos;
  };
  switch (text.back()) {
    case ' ':
    case '\'':
      return true;
    case 'n':
      return follows(" ");
    case 'v':
    case 'r':
      return follows(" '");
    default:
      return false;
  }
}

class CleaningDecoder : public TokenDecoder {
 public:
  explicit CleaningDecoder(std::unique_ptr<const TokenDecoder> decoder)
      : decoder_(std::move(decoder)) {}

  void apply(std::vector<std::string>& parts) const override {
    std::string text = uncleaned(std::move(parts));
    for (const auto& [search, by] : kCleanUp) {
      replace_all(text, search, by);
    }
    parts.assign(1, std::move(text));
  }

  bool may_change(const std::vector<std::string>& parts) const override {
    return (decoder_ != nullptr && decoder_->may_change(parts)) ||
           ends_in_rule(uncleaned(parts));
  }
  bool is_context(const std::vector<std::string>& parts) const override {
    return decoder_ == nullptr || decoder_->is_context(parts);
  }
  bool joins() const override {
    return true;
  }

 private:
  std::string uncleaned(std::vector<std::string> parts) const {
    if (decoder_ != nullptr) {
      decoder_->apply(parts);
    } else {
      for (size_t i = 1; i < parts.size(); ++i) {
        parts[i].insert(0, " ");
      }
    }
    return joined(parts);
  }

  std::unique_ptr<const TokenDecoder> decoder_;
};

/// Several, one after the other.
class DecoderSequence : public TokenDecoder {
 public:
  explicit DecoderSequence(const JsonValue& section) {
    for (const JsonValue& item : section.at("decoders").elements()) {
      std::unique_ptr<const TokenDecoder> decoder = read_decoder(item);
      needs_all_ = needs_all_ || (joins_ && !decoder->takes_joined());
      takes_joined_ = takes_joined_ && decoder->takes_joined();
      joins_ = joins_ || decoder->joins();
      decoders_.push_back(std::move(decoder));
    }
  }

  void apply(std::vector<std::string>& parts) const override {
    for (const auto& decoder : decoders_) {
      decoder->apply(parts);
    }
  }

  bool may_change(const std::vector<std::string>& parts) const override {
    if (needs_all_) {
      return true;
    }
    std::vector<std::string> rewritten = parts;
    for (const auto& decoder : decoders_) {
      if (rewritten.empty() || decoder->may_change(rewritten)) {
        return true;
      }
      decoder->apply(rewritten);
    }
    return false;
  }
  bool is_context(const std::vector<std::string>& parts) const override {
    std::vector<std::string> rewritten = parts;
    for (const auto& decoder : decoders_) {
      if (rewritten.empty() || !decoder->is_context(rewritten)) {
        return false;
      }
      decoder->apply(rewritten);
    }
    return !needs_all_;
  }
  bool joins() const override {
    return joins_;
  }
  bool takes_joined() const override {
    return takes_joined_;
  }

 private:
  std::vector<std::unique_ptr<const TokenDecoder>> decoders_;
  bool joins_ = false;
  bool takes_joined_ = true;
  /// Whether one rewrites a joined text in a way that only its end decides.
  bool needs_all_ = false;
};

} // namespace

std::unique_ptr<const TokenDecoder> cleaning_decoder(
    std::unique_ptr<const TokenDecoder> decoder) {
  return std::make_unique<CleaningDecoder>(std::move(decoder));
}

std::unique_ptr<const TokenDecoder> read_decoder(const JsonValue& section) {
  const auto type = section.at("type").as<std::string>();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelDecoder>();
  }
  if (type == "WordPiece") {
    return std::make_unique<WordPieceDecoder>(section);
  }
  if (type == "Metaspace") {
    return std::make_unique<MetaspaceDecoder>(section);
  }
  if (type == "BPEDecoder") {
    return std::make_unique<SuffixDecoder>(section);
  }
  if (type == "ByteFallback") {
    return std::make_unique<ByteFallbackDecoder>();
  }
  if (type == "Fuse") {
    return std::make_unique<FuseDecoder>();
  }
  if (type == "Strip") {
    return std::make_unique<StripDecoder>(section);
  }
  if (type == "Replace") {
    return std::make_unique<ReplaceDecoder>(section);
  }
  if (type == "CTC") {
    return std::make_unique<CtcDecoder>(section);
  }
  if (type == "Sequence") {
    return std::make_unique<DecoderSequence>(section);
  }
  section.at("type").fail(
      "BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse, Metaspace, Replace, Sequence, Strip or WordPiece");
}

} // namespace tessera::text
