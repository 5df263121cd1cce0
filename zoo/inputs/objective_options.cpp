// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/objective_options.h"

#include "tessera/runtime/core/option_fields.h"

#include <array>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr std::array kObjectives{
    std::pair{"next_token", ObjectiveKind::kNextToken},
    std::pair{"masked", ObjectiveKind::kMasked},
    std::pair{"span_corruption", ObjectiveKind::kSpanCorruption},
    std::pair{"blank_filling", ObjectiveKind::kBlankFilling},
    std::pair{"prefix", ObjectiveKind::kPrefix}};

} // namespace

const char* name_of(ObjectiveKind kind) {
  for (const auto& [name, one] : kObjectives) {
    if (one == kind) {
      return name;
    }
  }
  return "";
}

void visit_fields(runtime::OptionFields& fields, SpecialTokens& tokens) {
  const auto field =
      [&](const char* key, std::optional<int64_t>& token, const char* doc) {
        fields.field(key, token, {.min = 0}, doc);
      };
  field("start", tokens.start, "before a text, by default `[CLS]` or `<s>`");
  field(
      "end",
      tokens.end,
      "after a text, by default `[SEP]` or `</s>`; span corruption: the tokenizer's eos_token");
  field(
      "document_end",
      tokens.document_end,
      "the token that ends each document of the files, by default the tokenizer's eos_token; it is never masked or in a blank");
  field("mask", tokens.mask, "by default `[MASK]` or `<mask>`");
  field(
      "sentence_mask",
      tokens.sentence_mask,
      "of blanks that are sentences, by default `[sMASK]`, else `mask`");
  field(
      "document_mask",
      tokens.document_mask,
      "of the end of a text, by default `[gMASK]`, else `mask`");
  field(
      "piece_start",
      tokens.piece_start,
      "before what fills a blank, by default `<|startofpiece|>`, `<sop>` or `sop`");
  field(
      "piece_end",
      tokens.piece_end,
      "after what fills a blank, by default `<|endofpiece|>`, `<eop>` or `eop`");
  field(
      "first_sentinel",
      tokens.first_sentinel,
      "of span corruption, by default `<extra_id_0>`; the next ones have lower ids");
}

void visit_fields(runtime::OptionFields& fields, MaskedTextOptions& options) {
  visit_rates(fields, options.tokens);
  fields.field(
      "whole_word",
      options.whole_word,
      "the tokens of a word are predicted together: words by the tokenizer's own marks (`##`, U+2581, U+0120)");
  fields.field(
      "words",
      options.words,
      "a text file with a Chinese word on each line: characters that make one of them, the longest first, are a word");
  fields.choice(
      "pairs",
      options.pairs,
      {{"next_sentence", PairKind::kNextSentence},
       {"sentence_order", PairKind::kSentenceOrder}},
      "of a model that takes pairs (BertForPreTraining): half of the time the second segment is of another text, or both are exchanged");
}

void visit_fields(runtime::OptionFields& fields, SpanOptions& options) {
  fields.field(
      "density",
      options.density,
      {.min = 0, .max = 1, .open_min = true, .open_max = true},
      "the fraction of tokens that is taken out");
  fields.field(
      "mean_length",
      options.mean_length,
      {.min = 1},
      "mean tokens of a span that is taken out");
}

void visit_fields(runtime::OptionFields& fields, BlankOptions& options) {
  fields.field(
      "short",
      options.short_share,
      {.min = 0},
      "share of examples with short blanks, relative to the sum of the three");
  fields.field(
      "sentences",
      options.sentence_share,
      {.min = 0},
      "share of those with sentences as blanks");
  fields.field(
      "document",
      options.document_share,
      {.min = 0},
      "share of those whose end is a blank");
  fields.field(
      "ratio",
      options.ratio,
      {.min = 0, .max = 1, .open_min = true, .open_max = true},
      "the fraction of tokens in short blanks, and at least in sentences");
  fields.field(
      "mean_length",
      options.mean_length,
      {.min = 0, .open_min = true},
      "short blanks have Poisson distributed lengths of this mean, from 1 to 39");
  fields.field(
      "least_document",
      options.least_document,
      {.min = 0, .max = 1},
      "the end of a text that is a blank has at least this fraction of it");
  fields.field(
      "sentence_ends",
      options.sentence_ends,
      {.min = 0},
      "tokens that end a sentence, besides those that contain `.`, `?`, `!`, `;`, `:`, a line feed or their Chinese forms");
}

void visit_fields(runtime::OptionFields& fields, ObjectiveOptions& options) {
  std::vector<std::pair<std::string, std::optional<ObjectiveKind>>> kinds;
  for (const auto& [name, kind] : kObjectives) {
    kinds.emplace_back(name, kind);
  }
  fields.choice(
      "objective",
      options.kind,
      kinds,
      "what is predicted, by default what the model's head is for: the next token; `masked` tokens (BERT); `span_corruption` (T5); `blank_filling` (GLM); `prefix`: the end of a text by an encoder-decoder that has its beginning");
  fields.field(
      "tokenizer",
      options.tokenizer,
      "a folder or file of the tokenizer that made the token files, for its special tokens and words, and for the exported model; by default that in `model.folder`, or the one that `tessera tokenize` left beside the files");
  fields.object("special_tokens", options.special, "");
  fields.object("mask", options.mask, "");
  fields.object("spans", options.spans, "");
  fields.object("blanks", options.blanks, "");
}

} // namespace tessera::zoo
