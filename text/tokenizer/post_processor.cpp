// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/post_processor.h"

#include "tessera/text/tokenizer/byte_alphabet.h"
#include "tessera/text/tokenizer/characters.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace tessera::text {

namespace {

using runtime::JsonValue;

constexpr runtime::IntRange kIds{
    .min = 0,
    .max = std::numeric_limits<int32_t>::max()};

void check_id(const JsonValue& field, int64_t id, const TokenText& token_text) {
  if (token_text(id).empty()) {
    field.fail("the id of a token in the vocabulary");
  }
}

PlacedToken special_token(int64_t id, int64_t type_id) {
  return {.id = id, .type_id = type_id};
}

void set_type(TokenSequence& text, int64_t type_id) {
  for (PlacedToken& token : text) {
    token.type_id = type_id;
  }
}

/// One entry of a template: a text, or special tokens.
struct TemplatePiece {
  int text = -1; ///< 0 or 1; -1: special tokens
  std::vector<int64_t> ids;
  int64_t type_id = 0;
};

/// The pieces of a template, in order.
using Template = std::vector<TemplatePiece>;

/// Surrounds texts with special tokens as templates say.
class TemplateProcessing : public PostProcessor {
 public:
  TemplateProcessing(Template single, Template pair)
      : single_(std::move(single)), pair_(std::move(pair)) {}

  static std::unique_ptr<const PostProcessor> read(
      const JsonValue& section,
      const TokenText& token_text) {
    std::map<std::string, std::vector<int64_t>> special;
    const JsonValue tokens = section.at("special_tokens");
    for (const std::string& name : tokens.keys()) {
      const JsonValue ids = tokens.at(name).at("ids");
      special[name] = ids.integers(kIds);
      for (const int64_t id : special[name]) {
        check_id(ids, id, token_text);
      }
    }
    return std::make_unique<TemplateProcessing>(
        read_template(section.at("single"), special, 1),
        read_template(section.at("pair"), special, 2));
  }

  void apply(std::vector<TokenSequence>& texts, bool adds_tokens)
      const override {
    const Template& pieces = texts.size() > 1 ? pair_ : single_;
    std::vector<TokenSequence> results(1);
    for (const TemplatePiece& piece : pieces) {
      if (piece.text < 0) {
        if (adds_tokens) {
          for (const int64_t id : piece.ids) {
            results[0].push_back(special_token(id, piece.type_id));
          }
        }
        continue;
      }
      TokenSequence text = texts[static_cast<size_t>(piece.text)];
      set_type(text, piece.type_id);
      std::move(text.begin(), text.end(), std::back_inserter(results[0]));
    }
    texts = std::move(results);
  }

  size_t added_count(bool is_pair) const override {
    size_t count = 0;
    for (const TemplatePiece& piece : is_pair ? pair_ : single_) {
      count += piece.ids.size();
    }
    return count;
  }

 private:
  static Template read_template(
      const JsonValue& list,
      const std::map<std::string, std::vector<int64_t>>& special,
      int texts) {
    Template pieces;
    for (const JsonValue& item : list.elements()) {
      TemplatePiece piece;
      if (const auto sequence = item.find("Sequence")) {
        const auto name = sequence->at("id").as<std::string>();
        piece.text = name == "A" ? 0 : name == "B" ? 1 : 2;
        if (piece.text >= texts) {
          sequence->at("id").fail(texts == 1 ? "'A'" : "'A' or 'B'");
        }
        piece.type_id = sequence->at("type_id").integer();
      } else if (const auto token = item.find("SpecialToken")) {
        const auto found = special.find(token->at("id").as<std::string>());
        if (found == special.end()) {
          token->at("id").fail("one of the keys of 'special_tokens'");
        }
        piece.ids = found->second;
        piece.type_id = token->at("type_id").integer();
      } else {
        item.fail("an object with 'Sequence' or 'SpecialToken'");
      }
      pieces.push_back(std::move(piece));
    }
    return pieces;
  }

  Template single_;
  Template pair_;
};

/// ["token", id], as BertProcessing and RobertaProcessing write a token.
int64_t read_token_pair(const JsonValue& pair, const TokenText& token_text) {
  const auto elements = pair.elements();
  if (elements.size() != 2) {
    pair.fail("a token and its id, e.g. [\"[SEP]\", 102]");
  }
  const int64_t id = elements[1].integer(kIds);
  check_id(elements[1], id, token_text);
  return id;
}

/// cls a sep, or cls a sep b sep, with the second text and its sep of type 1.
std::unique_ptr<const PostProcessor> read_bert(
    const JsonValue& section,
    const TokenText& token_text) {
  const std::vector<int64_t> sep{
      read_token_pair(section.at("sep"), token_text)};
  const std::vector<int64_t> cls{
      read_token_pair(section.at("cls"), token_text)};
  const TemplatePiece a{.text = 0};
  const TemplatePiece b{.text = 1, .ids = {}, .type_id = 1};
  const TemplatePiece begin{.text = -1, .ids = cls};
  const TemplatePiece end{.text = -1, .ids = sep};
  const TemplatePiece end_of_b{.text = -1, .ids = sep, .type_id = 1};
  return std::make_unique<TemplateProcessing>(
      Template{begin, a, end}, Template{begin, a, end, b, end_of_b});
}

/// Takes the spaces at the ends of tokens out of their places in the text.
class TrimmedOffsets {
 public:
  TrimmedOffsets(bool adds_prefix_space, TokenText token_text)
      : adds_prefix_space_(adds_prefix_space),
        token_text_(std::move(token_text)) {}

  void apply(TokenSequence& text) const {
    for (size_t i = 0; i < text.size(); ++i) {
      trim(text[i], i == 0 || text[i].bytes.begin == 0);
    }
  }

 private:
  static bool is_space(char32_t c) {
    return c == byte_alphabet()[' '] || is_white_space(c);
  }

  void trim(PlacedToken& token, bool is_first) const {
    uint32_t leading = token.spaces_before;
    uint32_t trailing = 0;
    bool is_at_beginning = true; // so far, all are spaces
    for_each_code_point(token_text_(token.id), [&](char32_t c, size_t) {
      trailing = is_space(c) ? trailing + 1 : 0;
      is_at_beginning = is_at_beginning && is_space(c);
      leading += is_at_beginning ? 1 : 0;
    });
    trailing += token.spaces_after;
    if (leading > 0 && is_first && adds_prefix_space_) {
      --leading; // is not in the text
    }
    ByteRange& bytes = token.bytes;
    bytes.begin = std::min(bytes.begin + leading, bytes.end);
    if (is_at_beginning) {
      bytes.end = bytes.begin; // nothing but spaces
    } else {
      bytes.end = std::max(bytes.end - trailing, bytes.begin);
    }
  }

  bool adds_prefix_space_;
  TokenText token_text_;
};

/// <s> a </s>, or <s> a </s> </s> b </s>, all of type 0.
class RobertaProcessing : public PostProcessor {
 public:
  RobertaProcessing(const JsonValue& section, TokenText token_text)
      : sep_(read_token_pair(section.at("sep"), token_text)),
        cls_(read_token_pair(section.at("cls"), token_text)) {
    if (section.value_or("trim_offsets", true)) {
      trimmed_.emplace(
          section.value_or("add_prefix_space", true), std::move(token_text));
    }
  }

  void apply(std::vector<TokenSequence>& texts, bool adds_tokens)
      const override {
    for (size_t i = 0; i < texts.size(); ++i) {
      TokenSequence& text = texts[i];
      if (trimmed_) {
        trimmed_->apply(text);
      }
      set_type(text, 0);
      if (adds_tokens) {
        text.insert(text.begin(), special_token(i == 0 ? cls_ : sep_, 0));
        text.push_back(special_token(sep_, 0));
      }
    }
  }

  size_t added_count(bool is_pair) const override {
    return is_pair ? 4 : 2;
  }

 private:
  int64_t sep_;
  int64_t cls_;
  std::optional<TrimmedOffsets> trimmed_;
};

/// Trims the places of tokens that begin or end with spaces.
class ByteLevelProcessing : public PostProcessor {
 public:
  ByteLevelProcessing(const JsonValue& section, TokenText token_text) {
    if (section.value_or("trim_offsets", true)) {
      trimmed_.emplace(
          section.value_or("add_prefix_space", true), std::move(token_text));
    }
  }

  void apply(std::vector<TokenSequence>& texts, bool /*adds_tokens*/)
      const override {
    for (TokenSequence& text : texts) {
      if (trimmed_) {
        trimmed_->apply(text);
      }
    }
  }

  size_t added_count(bool /*is_pair*/) const override {
    return 0;
  }

 private:
  std::optional<TrimmedOffsets> trimmed_;
};

/// Several, one after the other.
class PostProcessorSequence : public PostProcessor {
 public:
  PostProcessorSequence(const JsonValue& section, const TokenText& token_text) {
    for (const JsonValue& item : section.at("processors").elements()) {
      processors_.push_back(read_post_processor(item, token_text));
    }
  }

  void apply(std::vector<TokenSequence>& texts, bool adds_tokens)
      const override {
    for (const auto& processor : processors_) {
      processor->apply(texts, adds_tokens);
    }
  }

  size_t added_count(bool is_pair) const override {
    size_t count = 0;
    for (const auto& processor : processors_) {
      count += processor->added_count(is_pair);
    }
    return count;
  }

 private:
  std::vector<std::unique_ptr<const PostProcessor>> processors_;
};

} // namespace

std::unique_ptr<const PostProcessor> read_post_processor(
    const JsonValue& section,
    TokenText token_text) {
  const auto type = section.at("type").as<std::string>();
  if (type == "TemplateProcessing") {
    return TemplateProcessing::read(section, token_text);
  }
  if (type == "BertProcessing") {
    return read_bert(section, token_text);
  }
  if (type == "RobertaProcessing") {
    return std::make_unique<RobertaProcessing>(section, std::move(token_text));
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelProcessing>(
        section, std::move(token_text));
  }
  if (type == "Sequence") {
    return std::make_unique<PostProcessorSequence>(section, token_text);
  }
  section.at("type").fail(
      "BertProcessing, ByteLevel, RobertaProcessing, Sequence or TemplateProcessing");
}

std::unique_ptr<const PostProcessor> surrounding_post_processor(
    std::vector<int64_t> before,
    std::vector<int64_t> after) {
  const TemplatePiece begin{.text = -1, .ids = std::move(before)};
  const TemplatePiece end{.text = -1, .ids = std::move(after)};
  TemplatePiece begin_of_b = begin;
  TemplatePiece end_of_b = end;
  begin_of_b.type_id = 1;
  end_of_b.type_id = 1;
  const TemplatePiece a{.text = 0};
  const TemplatePiece b{.text = 1, .ids = {}, .type_id = 1};
  return std::make_unique<TemplateProcessing>(
      Template{begin, a, end},
      Template{begin, a, end, begin_of_b, b, end_of_b});
}

} // namespace tessera::text
