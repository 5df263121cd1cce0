// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/sentencepiece_text.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/character_map.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

namespace {

constexpr char32_t kEscapedSpaceCharacter = 0x2581;

class SentencePieceNormalizing : public Normalizer {
 public:
  explicit SentencePieceNormalizing(const SentencePieceModel& model)
      : options_(model.normalizer),
        adds_suffix_(model.treat_whitespace_as_suffix) {
    if (!options_.precompiled_charsmap.empty()) {
      map_.emplace(options_.precompiled_charsmap);
    }
    for (const SentencePiece& piece : model.pieces) {
      if (piece.kind == SentencePieceKind::kUserDefined) {
        longest_defined_ = std::max(longest_defined_, piece.text.size());
        defined_.insert(piece.text);
      }
    }
  }

  void apply(AlignedText& text) const override {
    Result result{.is_after_space = options_.remove_extra_whitespaces};
    std::string_view rest = text.text();
    bool has_words = false; // characters that go without a trace are such too
    while (!rest.empty()) {
      const Mapped mapped = map_prefix(rest);
      has_words = has_words || mapped.by != " ";
      add(rest.substr(0, mapped.bytes), mapped.by, result);
      rest.remove_prefix(mapped.bytes);
    }
    std::vector<Rewritten>& all = result.code_points;
    if (options_.remove_extra_whitespaces) {
      while (!all.empty() && all.back().code_point == space()) {
        all.pop_back();
      }
    }
    // A space that goes in front is one of those at the end of nothing.
    const bool is_empty =
        text.text().empty() || (options_.remove_extra_whitespaces &&
                                (adds_suffix_ ? !has_words : all.empty()));
    if (options_.add_dummy_prefix && !is_empty) {
      const Rewritten prefix{space(), 1};
      all.insert(adds_suffix_ ? all.end() : all.begin(), prefix);
    }
    text.rewrite(all, result.skipped);
  }

 private:
  struct Result {
    std::vector<Rewritten> code_points;
    size_t skipped = 0; ///< code points before the first one
    bool is_after_space = false;
  };

  char32_t space() const {
    return options_.escape_whitespaces ? kEscapedSpaceCharacter : U' ';
  }

  /// What replaces the next characters of a text.
  Mapped map_prefix(std::string_view text) const {
    for (size_t bytes = std::min(longest_defined_, text.size()); bytes > 0;
         --bytes) {
      if (defined_.count(text.substr(0, bytes)) > 0) {
        return {bytes, text.substr(0, bytes)};
      }
    }
    if (map_) {
      if (const auto mapped = map_->longest_prefix(text)) {
        return *mapped;
      }
    }
    const size_t bytes = utf8_length(text, 0);
    return {bytes, text.substr(0, bytes)};
  }

  void add(std::string_view old, std::string_view by, Result& result) const {
    auto gone = static_cast<int>(count_code_points(old));
    bool is_first = true;
    if (options_.remove_extra_whitespaces && result.is_after_space) {
      by.remove_prefix(std::min(by.find_first_not_of(' '), by.size()));
    }
    for_each_code_point(by, [&](char32_t c, size_t) {
      result.code_points.push_back({c == ' ' ? space() : c, is_first ? 0 : 1});
      is_first = false;
    });
    if (!by.empty()) {
      // The first one replaces one; what else is gone is so after the last.
      result.is_after_space =
          options_.remove_extra_whitespaces && by.back() == ' ';
      --gone;
    }
    if (result.code_points.empty()) {
      result.skipped += static_cast<size_t>(gone);
      return;
    }
    for (size_t i = result.code_points.size(); gone > 0 && i > 0; --i) {
      Rewritten& last = result.code_points[i - 1];
      if (last.change <= 0) { // that takes from the old text
        last.change -= gone;
        break;
      }
    }
  }

  SentencePieceNormalizer options_;
  bool adds_suffix_;
  std::optional<CharacterMap> map_;
  std::set<std::string, std::less<>> defined_;
  size_t longest_defined_ = 0;
};

class SentencePieceDecoding : public TokenDecoder {
 public:
  explicit SentencePieceDecoding(const SentencePieceModel& model)
      : normalizer_(model.normalizer), unk_surface_(model.unk_surface) {
    TESSERA_CHECK(
        model.denormalizer_charsmap.empty(),
        "{}: the model has a denormalizer, which is not supported; train the model without one",
        model.origin);
    for (const SentencePiece& piece : model.pieces) {
      if (piece.kind == SentencePieceKind::kControl) {
        control_.insert(piece.text);
      } else if (piece.kind == SentencePieceKind::kUnknown) {
        unknown_ = piece.text;
      } else if (piece.kind == SentencePieceKind::kByte) {
        bytes_.insert(piece.text);
      }
    }
  }

  void apply(std::vector<std::string>& parts) const override {
    std::string text;
    std::string bytes;
    bool had_space = false; // at the beginning
    const auto flush = [&] {
      for (size_t i = 0; i < bytes.size();) {
        const std::string_view rest = std::string_view(bytes).substr(i);
        const size_t length = utf8_length(rest, 0);
        std::string storage;
        const bool is_valid =
            valid_utf8(rest.substr(0, length), storage).data() == rest.data();
        text += is_valid ? rest.substr(0, length) : kReplacementUtf8;
        i += is_valid ? length : 1;
      }
      bytes.clear();
    };
    for (const std::string& part : parts) {
      if (bytes_.count(part) > 0) {
        bytes.push_back(static_cast<char>(*byte_of_token(part)));
        continue;
      }
      flush();
      if (control_.count(part) > 0) {
        continue;
      }
      if (part == unknown_) {
        text += unk_surface_;
        continue;
      }
      std::string_view visible = part;
      const bool strips = text.empty() && !had_space &&
                          (normalizer_.add_dummy_prefix ||
                           normalizer_.remove_extra_whitespaces);
      if (strips && visible.starts_with(kEscapedSpace)) {
        visible.remove_prefix(kEscapedSpace.size());
        had_space = !normalizer_.remove_extra_whitespaces;
      }
      append_spaced(visible, text);
    }
    flush();
    parts.assign(1, std::move(text));
  }

  /// Spaces go at the beginning of the text only, which some text ends.
  bool is_context(const std::vector<std::string>& parts) const override {
    std::vector<std::string> text = parts;
    apply(text);
    return !text.front().empty();
  }
  bool joins() const override {
    return true;
  }

 private:
  static void append_spaced(std::string_view part, std::string& text) {
    while (!part.empty()) {
      const size_t at = std::min(part.find(kEscapedSpace), part.size());
      text += part.substr(0, at);
      if (at == part.size()) {
        return;
      }
      text += ' ';
      part.remove_prefix(at + kEscapedSpace.size());
    }
  }

  SentencePieceNormalizer normalizer_;
  std::string unk_surface_;
  std::set<std::string> control_;
  std::set<std::string> bytes_;
  std::string unknown_;
};

} // namespace

std::unique_ptr<const Normalizer> sentencepiece_normalizer(
    const SentencePieceModel& model) {
  return std::make_unique<SentencePieceNormalizing>(model);
}

std::unique_ptr<const TokenDecoder> sentencepiece_decoder(
    const SentencePieceModel& model) {
  return std::make_unique<SentencePieceDecoding>(model);
}

} // namespace tessera::text
