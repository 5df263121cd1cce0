// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ObjectiveOptions` says what a model is pretrained on: the next tokens of
// documents, or what is taken out of them.

#include "tessera/zoo/inputs/example_draws.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera::zoo {

enum class ObjectiveKind {
  kNextToken,
  kMasked, ///< masked tokens (BERT, arXiv:1810.04805)
  kSpanCorruption, ///< spans for sentinels (T5, arXiv:1910.10683)
  kBlankFilling, ///< blanks, one after the other (GLM, arXiv:2103.10360)
  kPrefix, ///< the second part of a text after the first (arXiv:1910.10683)
};

/// "span_corruption".
const char* name_of(ObjectiveKind kind);

/// Tokens with a meaning of their own; those that are not given are the
/// tokenizer's, see SpecialTokens::of().
struct SpecialTokens {
  std::optional<int64_t> start; ///< before a text: [CLS]
  std::optional<int64_t> end; ///< after a text: [SEP], </s>
  std::optional<int64_t> document_end; ///< which the files have
  std::optional<int64_t> mask; ///< also of short blanks
  std::optional<int64_t> sentence_mask;
  std::optional<int64_t> document_mask;
  std::optional<int64_t> piece_start; ///< before what fills a blank
  std::optional<int64_t> piece_end; ///< after it
  std::optional<int64_t> first_sentinel; ///< the others descend from it
};

void visit_fields(runtime::OptionFields& fields, SpecialTokens& tokens);

/// The second of two segments.
enum class PairKind {
  kNextSentence, ///< follows the first one, or is of another text
  kSentenceOrder, ///< follows the first one, or is before it
};

struct MaskedTextOptions {
  TokenMaskOptions tokens; ///< without mask_token and never_masked
  bool whole_word = false;
  std::filesystem::path words; ///< a list of Chinese words; may be empty
  PairKind pairs = PairKind::kNextSentence;
};

void visit_fields(runtime::OptionFields& fields, MaskedTextOptions& options);

struct SpanOptions {
  double density = 0.15; ///< the fraction of tokens that is taken out
  double mean_length = 3; ///< of spans
};

void visit_fields(runtime::OptionFields& fields, SpanOptions& options);

struct BlankOptions {
  /// The shares of examples; their sum is above 0.
  double short_share = 0.5;
  double sentence_share = 0.3;
  double document_share = 0.2;
  double ratio = 0.15; ///< the fraction of tokens in short blanks or sentences
  double mean_length = 3; ///< of short blanks, before those of 0 are left out
  double least_document = 0.25; ///< the smallest fraction in a document's end
  /// Tokens that end a sentence, besides those that the tokenizer says.
  std::vector<int64_t> sentence_ends;
};

void visit_fields(runtime::OptionFields& fields, BlankOptions& options);

/// A part of the section `data` of the task language_model.
struct ObjectiveOptions {
  std::optional<ObjectiveKind> kind; ///< nothing: the first of the head
  std::filesystem::path tokenizer; ///< empty: in the model's folder
  SpecialTokens special;
  MaskedTextOptions mask;
  SpanOptions spans;
  BlankOptions blanks;
};

void visit_fields(runtime::OptionFields& fields, ObjectiveOptions& options);

} // namespace tessera::zoo
