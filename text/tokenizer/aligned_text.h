// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AlignedText` is a text on its way through a tokenizer: as it has been
// normalized so far, with the words into which it is divided and the place of
// every byte in the text as it was given.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// Bytes [begin, end) of a text.
struct ByteRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  uint32_t size() const {
    return end - begin;
  }
  bool operator==(const ByteRange&) const = default;
};

/// One code point of a rewritten text and what it stands for.
struct Rewritten {
  char32_t code_point = 0;
  /// 0: it replaces the next code point of the old text. 1: it is inserted, and
  /// stands where the code point before it does. -n: it replaces the next one,
  /// and the n code points after that are gone.
  int change = 0;
};

/// UTF-8 in, UTF-8 or bytes out: tokenizers with an alphabet of bytes
/// (`ByteLevel`) keep the bytes of the text where the `tokenizers` library maps
/// each to a printable character. Texts have less than 4 GiB.
class AlignedText {
 public:
  /// The whole of `text` is one word.
  /// @param text valid UTF-8.
  /// @param offset of its first byte in the text as it was given.
  /// @param keeps_origins whether origin() is wanted; without, rewriting is
  ///   faster.
  AlignedText(std::string_view text, uint32_t offset, bool keeps_origins);

  /// As normalized so far.
  const std::string& text() const {
    return text_;
  }
  /// The words, in order. They do not overlap; together they may lack parts of
  /// the text that were removed.
  const std::vector<ByteRange>& words() const {
    return words_;
  }
  std::string_view word(size_t i) const {
    return std::string_view(text_).substr(words_[i].begin, words_[i].size());
  }
  bool keeps_origins() const {
    return keeps_origins_;
  }
  /// Where bytes of text() come from; an empty range stands at the end of the
  /// byte before it. Requires keeps_origins().
  ByteRange origin(ByteRange range) const;
  /// Whether a word begins where the text as it was given began, before parts
  /// of that became texts of their own.
  bool begins_given_text(size_t i) const {
    return is_divided_ ? words_[i].begin < first_end_ : offset_ == 0;
  }

  /// A part of the text, as one word.
  AlignedText part(ByteRange range) const;

  /// Rewrites the whole text, before it is divided into words.
  /// @param skipped code points at its beginning that are gone.
  void rewrite(const std::vector<Rewritten>& code_points, size_t skipped = 0);

  /// Replaces parts of the whole text, which are in order, before it is divided
  /// into words. What replaces a part stands where its last byte does.
  void replace(const std::vector<ByteRange>& parts, std::string_view by);

  /// Rewrites every word on its own. `edit` appends the new code points of a
  /// word to the (empty) vector and returns how many at its beginning are gone;
  /// kUnchanged: it is left as it is.
  static constexpr size_t kUnchanged = static_cast<size_t>(-1);
  void rewrite_words(
      const std::function<size_t(std::string_view, std::vector<Rewritten>&)>&
          edit);

  /// Divides every word: `cut` appends the ranges, relative to the word, that
  /// become words. Empty ones are dropped.
  void split_words(
      const std::function<void(std::string_view, std::vector<ByteRange>&)>&
          cut);

 private:
  /// Appends what `code_points` make of `from` to the result of a rewriting.
  struct Rewriting {
    std::string text;
    std::vector<ByteRange> origins;
    uint32_t first_end = 0;
  };
  void append_rewritten(
      ByteRange from,
      const std::vector<Rewritten>& code_points,
      size_t skipped,
      Rewriting& to) const;
  void append_unchanged(ByteRange from, Rewriting& to) const;
  void finish(Rewriting&& rewriting);
  /// Where stands what is inserted at the beginning of a word.
  ByteRange origin_before(ByteRange word) const;

  std::string text_;
  std::vector<ByteRange> origins_; ///< per byte of text_, if they are kept
  std::vector<ByteRange> words_;
  uint32_t offset_;
  /// What is before it in text_ stands for the first code point of the text as
  /// it was given; 0: nothing does.
  uint32_t first_end_ = 0;
  bool is_divided_ = false; ///< split_words() was called
  bool keeps_origins_;
};

} // namespace tessera::text
