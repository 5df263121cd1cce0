// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/unicode_form.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <optional>

namespace tessera::text {

namespace {

const icu::Normalizer2& icu_form(UnicodeForm wanted) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* form = nullptr;
  switch (wanted) {
    case UnicodeForm::kNfc:
      form = icu::Normalizer2::getNFCInstance(status);
      break;
    case UnicodeForm::kNfd:
      form = icu::Normalizer2::getNFDInstance(status);
      break;
    case UnicodeForm::kNfkc:
      form = icu::Normalizer2::getNFKCInstance(status);
      break;
    case UnicodeForm::kNfkd:
      form = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  TESSERA_CHECK(
      U_SUCCESS(status),
      "ICU cannot load its normalization data: {}; reinstall the ICU library (Debian: libicu-dev)",
      u_errorName(status));
  return *form;
}

/// 0 of starters. No character below U+0300 has another.
uint8_t combining_class(char32_t c) {
  if (c < 0x300) {
    return 0;
  }
  const uint8_t combining = u_getCombiningClass(static_cast<UChar32>(c));
  return combining != 0 && is_of_unicode_9(c) ? combining : 0;
}

/// No character below it changes when it is decomposed.
constexpr char32_t kFirstDecomposed = 0xa0;

/// Decomposes, and puts marks in the order of their classes.
class Decomposition {
 public:
  Decomposition(UnicodeForm form, std::vector<Rewritten>& result)
      : form_(icu_form(form)), result_(result) {}

  void append(char32_t c) {
    if (c < kFirstDecomposed) {
      append_one(c, 0, 0);
      return;
    }
    parts_.remove();
    if (!form_.getDecomposition(static_cast<UChar32>(c), parts_) ||
        !is_of_unicode_9(c)) {
      append_one(c, 0, combining_class(c));
      return;
    }
    for (int32_t i = 0; i < parts_.length();) {
      const UChar32 part = parts_.char32At(i);
      const auto code_point = static_cast<char32_t>(part);
      append_one(code_point, i == 0 ? 0 : 1, combining_class(code_point));
      i += U16_LENGTH(part);
    }
  }

  void finish() {
    if (marks_.size() > 1) {
      std::stable_sort(
          marks_.begin(), marks_.end(), [](const Mark& a, const Mark& b) {
            return a.combining < b.combining;
          });
    }
    for (const Mark& mark : marks_) {
      result_.push_back(mark.character);
    }
    marks_.clear();
  }

 private:
  struct Mark {
    Rewritten character;
    uint8_t combining = 0;
  };

  void append_one(char32_t c, int change, uint8_t combining) {
    if (combining != 0) {
      marks_.push_back({{c, change}, combining});
      return;
    }
    if (!marks_.empty()) {
      finish();
    }
    result_.push_back({c, change});
  }

  const icu::Normalizer2& form_;
  std::vector<Rewritten>& result_;
  std::vector<Mark> marks_; ///< since the last starter
  icu::UnicodeString parts_;
};

std::optional<char32_t> composed(
    const icu::Normalizer2& form,
    char32_t first,
    char32_t second) {
  if (second < 0x300) {
    return std::nullopt;
  }
  const UChar32 pair = form.composePair(
      static_cast<UChar32>(first), static_cast<UChar32>(second));
  if (pair < 0 || !is_of_unicode_9(static_cast<char32_t>(pair))) {
    return std::nullopt;
  }
  return static_cast<char32_t>(pair);
}

/// Composes what is decomposed, in place. A mark is composed with the starter
/// before it unless a mark between them has the same class or a higher one.
void compose(std::vector<Rewritten>& code_points, size_t from) {
  const icu::Normalizer2& form = icu_form(UnicodeForm::kNfc);
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone; // in the result
  int last_class = -1; // of what is kept since the starter; -1: nothing is
  size_t kept = from;
  for (size_t i = from; i < code_points.size(); ++i) {
    const Rewritten now = code_points[i];
    const uint8_t combining = combining_class(now.code_point);
    if (starter != kNone && last_class < static_cast<int>(combining)) {
      if (const auto pair =
              composed(form, code_points[starter].code_point, now.code_point)) {
        Rewritten& into = code_points[starter];
        into = {*pair, into.change + now.change - 1};
        continue;
      }
    }
    if (combining == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining;
    }
    code_points[kept++] = now;
  }
  code_points.resize(kept);
}

} // namespace

void append_in_form(
    UnicodeForm form,
    std::string_view text,
    std::vector<Rewritten>& code_points) {
  const size_t from = code_points.size();
  Decomposition decomposition(form, code_points);
  for_each_code_point(
      text, [&](char32_t c, size_t) { decomposition.append(c); });
  decomposition.finish();
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {
    compose(code_points, from);
  }
}

void rewrite_in_form(UnicodeForm form, AlignedText& text) {
  const std::string& old = text.text();
  if (is_ascii(old)) {
    return;
  }
  // What is in the form by ICU's tables is in it by those of Unicode 9, which
  // know fewer marks and fewer pairs.
  UErrorCode status = U_ZERO_ERROR;
  if (icu_form(form).isNormalizedUTF8(
          icu::StringPiece(old.data(), static_cast<int32_t>(old.size())),
          status) &&
      U_SUCCESS(status)) {
    return;
  }
  std::vector<Rewritten> code_points;
  code_points.reserve(old.size());
  append_in_form(form, old, code_points);
  text.rewrite(code_points);
}

} // namespace tessera::text
