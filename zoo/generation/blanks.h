// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BlankedText` is a text with blanks that GLM (arXiv:2103.10360) fills in.

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/models/model.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// A short blank, one of sentences, and the rest of a text.
inline constexpr std::array<std::string_view, 3> kBlankMarks = {
    "[MASK]",
    "[sMASK]",
    "[gMASK]"};

/// The tokens of GLM's tokenizers that mark blanks.
struct BlankTokens {
  /// Those of [MASK] (a short blank), [sMASK] (sentences) and [gMASK] (the
  /// rest of a text) that the tokenizer has.
  std::vector<int64_t> blanks;
  int64_t start = 0; ///< <|startofpiece|>, before what is filled in
  int64_t end = 0; ///< <|endofpiece|>, after it
  /// Before and after a text, as the authors' tokenizers add them: [CLS], and
  /// <|endoftext|> or [SEP]. -1: none.
  int64_t text_start = -1;
  int64_t text_end = -1;

  /// @throws tessera::Error naming the tokens that the tokenizer lacks.
  static BlankTokens of(const text::Tokenizer& tokenizer);
};

/// The context, whose tokens see each other, is followed by what was written:
/// for each blank the start token and the tokens of that blank. They see the
/// context and what is before them. Their position is that of the blank in the
/// context; a second one counts the tokens within the blank, from 1 for the
/// start token (build_inputs_for_generation() of the authors' tokenizers, and
/// for several blanks, one after the other, the authors' sample scripts).
struct BlankedText {
  std::vector<int64_t> context;
  std::vector<int64_t> blanks; ///< positions in the context, ascending
  std::vector<std::vector<int64_t>> filled; ///< the first blanks; no end tokens

  bool is_full() const {
    return filled.size() == blanks.size();
  }
};

/// @throws tessera::Error if the text has no blank.
BlankedText blanked_text(
    const text::Tokenizer& tokenizer,
    const BlankTokens& tokens,
    std::string_view text);

/// The input from which generate() writes the next blank of each text, padded
/// on the left: input_ids, position_ids [B, 2, S], `sep` [B] and, if there is
/// padding, attention_mask.
/// @param texts none of which is full.
ModelInput blank_inputs(
    const std::vector<BlankedText>& texts,
    int64_t start,
    at::Device device);

/// The text with its marks of blanks replaced by texts, in order. A space on
/// either side of a mark is not doubled.
std::string with_blanks_filled(
    std::string_view text,
    const std::vector<std::string>& filled);

} // namespace tessera::zoo
