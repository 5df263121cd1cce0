// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BlankObjective` makes blanks of parts of packed texts, which the model fills
// in one after the other (GLM, arXiv:2103.10360).

#include "tessera/zoo/data/objective.h"

#include <span>
#include <utility>

namespace tessera::zoo {

enum class BlankKind { kShort, kSentences, kDocument };

/// The tokens of examples with blanks, and which may be in them.
struct BlankVocabulary {
  std::optional<int64_t> start; ///< before a text
  std::optional<int64_t> document_end; ///< is in no blank, but for kDocument
  int64_t mask = 0;
  int64_t sentence_mask = 0;
  int64_t document_mask = 0;
  int64_t piece_start = 0;
  int64_t piece_end = 0;
  std::vector<bool> ends_sentence; ///< by token
};

/// As `BlankedText` of zoo/generation. `labels` is what each token predicts:
/// the next token of its blank, and after the last one piece_end.
struct BlankExample {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels; ///< -100 in the context
  std::vector<int64_t> positions; ///< in the context, of blanks that of a mask
  std::vector<int64_t> block_positions; ///< within a blank, from 1
  int64_t sep = 0; ///< the number of tokens of the context
};

/// The largest number of blanks of a text: half more than are expected, so that
/// examples fit in sequences of a fixed length.
int64_t most_blanks(int64_t text_tokens, const BlankOptions& options);

/// A kind in proportion to the shares. Takes one number.
BlankKind drawn_kind(const BlankOptions& options, const Uniforms& draws);

/// The parts [begin, end) of a text that become blanks, ascending and disjoint.
///  - kShort: lengths are drawn until those of a document and of the ones
///    before it in the text have `ratio` of their tokens; places in it at
///    random, with a token between any two.
///  - kSentences: sentences in random order until they have `ratio` of the
///    text.
///  - kDocument: the end of the text, of random length.
/// Follows the authors' ConstructBlockStrategy, which draws the lengths for all
/// documents of a text before it divides them.
std::vector<std::pair<int64_t, int64_t>> drawn_blanks(
    BlankKind kind,
    std::span<const int64_t> text,
    const std::vector<int64_t>& starts,
    const BlankVocabulary& vocabulary,
    const BlankOptions& options,
    const Uniforms& draws);

/// The blanks follow the text in random order. At the end of a text that was
/// cut nothing ends: with kDocument the last label is the last token.
BlankExample blank_example(
    BlankKind kind,
    std::span<const int64_t> text,
    const std::vector<std::pair<int64_t, int64_t>>& blanks,
    const BlankVocabulary& vocabulary,
    const Uniforms& draws);

class BlankObjective : public Objective {
 public:
  /// @throws tessera::Error as make_objective().
  BlankObjective(
      const ObjectiveOptions& options,
      const std::optional<text::Tokenizer>& tokenizer,
      const Head& head,
      const ObjectiveSetting& setting);

  int64_t text_tokens() const override {
    return text_tokens_;
  }
  /// The context is not longer than the text, by which positions count.
  int64_t positions() const override {
    return text_tokens_ + (vocabulary_.start ? 1 : 0);
  }
  ModelInput make(
      const PackedSamples& texts,
      const std::vector<size_t>& examples,
      int64_t epoch) const override;

 private:
  BlankOptions options_;
  BlankVocabulary vocabulary_;
  int64_t length_;
  int64_t text_tokens_ = 0;
  uint64_t seed_;
};

} // namespace tessera::zoo
