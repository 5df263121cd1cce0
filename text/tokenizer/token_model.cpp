// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/token_model.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/bpe.h"
#include "tessera/text/tokenizer/unigram.h"
#include "tessera/text/tokenizer/word_level.h"
#include "tessera/text/tokenizer/wordpiece.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace tessera::text {
namespace {

using runtime::JsonValue;

/// The tokens and ids of an object. Vocabularies are large: a value gets a
/// JsonValue, with its place, only for a message.
Vocabulary read_vocabulary_of_ids(const JsonValue& vocabulary) {
  if (!vocabulary.value().is_object() || vocabulary.value().empty()) {
    vocabulary.fail("an object of tokens and their ids");
  }
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(vocabulary.value().size());
  for (const auto& [token, id] : vocabulary.value().items()) {
    if (!id.is_number_integer() || id.is_number_float() ||
        id.get<double>() < 0 || id.get<double>() >= 0x1p31) {
      vocabulary.at(token).fail("an integer from 0 to 2147483647");
    }
    tokens.emplace_back(token, id.get<int64_t>());
  }
  return {std::move(tokens), vocabulary.place()};
}

/// The two tokens of a merge, "a b" or ["a", "b"]; empty if it has another
/// form.
std::pair<std::string_view, std::string_view> merge_parts(
    const nlohmann::json& merge) {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos ||
        text.find(' ', space + 1) != std::string_view::npos) {
      return {};
    }
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
      merge[1].is_string()) {
    return {
        merge[0].get_ref<const std::string&>(),
        merge[1].get_ref<const std::string&>()};
  }
  return {};
}

std::vector<Bpe::Merge> read_merges(
    const JsonValue& section,
    const Vocabulary& vocabulary,
    const BpeOptions& options) {
  const nlohmann::json& listed = section.value();
  if (!listed.is_array()) {
    section.fail("a list of pairs of tokens");
  }
  std::vector<Bpe::Merge> merges;
  merges.reserve(listed.size());
  std::string merged;
  for (size_t i = 0; i < listed.size(); ++i) {
    if (listed[i].is_string() &&
        listed[i].get_ref<const std::string&>().starts_with("#version")) {
      continue; // the first line of merges.txt
    }
    const auto fail = [&](const std::string& expected) {
      section.elements()[i].fail(expected);
    };
    const auto [left, right] = merge_parts(listed[i]);
    if (left.empty() || right.empty()) {
      fail("two tokens, as \"a b\" or [\"a\", \"b\"]");
    }
    const auto find = [&](std::string_view token) {
      const auto id = vocabulary.find(token);
      if (!id) {
        fail(formatted(
            "a merge of tokens of 'vocab', which lacks '{}'; fetch the tokenizer's files again",
            token));
      }
      return *id;
    };
    merged.assign(left);
    merged += Bpe::merged_part(right, options);
    merges.push_back({find(left), find(right), find(merged)});
  }
  return merges;
}

std::unique_ptr<const TokenModel> read_bpe(
    const JsonValue& section,
    bool has_bytes) {
  if (const auto dropout = section.find_set("dropout");
      dropout && dropout->as<double>() != 0) {
    dropout->fail(
        "0 or null: texts would be divided at random; set it to null to train or predict without dropout of merges");
  }
  BpeOptions options;
  options.has_bytes = has_bytes;
  if (const auto unk = section.find_set("unk_token")) {
    options.unk_token = unk->as<std::string>();
  }
  options.continuing_prefix =
      section.get_or<std::string>("continuing_subword_prefix", "");
  options.end_of_word_suffix =
      section.get_or<std::string>("end_of_word_suffix", "");
  options.fuse_unk = section.get_or("fuse_unk", false);
  options.byte_fallback = section.get_or("byte_fallback", false);
  options.ignore_merges = section.get_or("ignore_merges", false);
  Vocabulary vocabulary = read_vocabulary_of_ids(section.at("vocab"));
  const auto merges = read_merges(section.at("merges"), vocabulary, options);
  return std::make_unique<Bpe>(
      std::move(vocabulary), merges, std::move(options));
}

/// A number as the `tokenizers` library reads it: its JSON parser rounds the
/// digits and then their quotient by a power of ten, which in one of eight
/// numbers is another double than the nearest one. It decides between divisions
/// of equal tokens in another order, such as "." and "..." for "....".
double twice_rounded(double value) {
  std::array<char, 32> text{};
  const char* const end = std::to_chars(
                              text.data(),
                              text.data() + text.size(),
                              std::abs(value),
                              std::chars_format::scientific)
                              .ptr;
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text.data();
  for (bool is_fraction = false; *at != 'e'; ++at) {
    if (*at == '.') {
      is_fraction = true;
      continue;
    }
    digits = 10 * digits + static_cast<uint64_t>(*at - '0');
    exponent -= is_fraction;
  }
  at += at[1] == '+' ? 2 : 1;
  int written = 0;
  std::from_chars(at, end, written);
  exponent += written;
  if (std::abs(exponent) > 308) {
    return value;
  }
  // Powers of ten are the nearest doubles, as literals are.
  static const auto powers = [] {
    std::array<double, 309> all{};
    for (int i = 0; i < 309; ++i) {
      const std::string literal = "1e" + std::to_string(i);
      std::from_chars(
          literal.data(),
          literal.data() + literal.size(),
          all[static_cast<size_t>(i)]);
    }
    return all;
  }();
  const double power = powers[static_cast<size_t>(std::abs(exponent))];
  const double magnitude = exponent < 0 ? static_cast<double>(digits) / power
                                        : static_cast<double>(digits) * power;
  return std::copysign(magnitude, value);
}

std::unique_ptr<const TokenModel> read_unigram(
    const JsonValue& section,
    bool has_bytes) {
  constexpr double kUnkPenalty = 10;
  const JsonValue pieces = section.at("vocab");
  const nlohmann::json& listed = pieces.value();
  if (!listed.is_array() || listed.empty()) {
    pieces.fail("a list of tokens and their scores");
  }
  UnigramOptions options;
  options.has_bytes = has_bytes;
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(listed.size());
  double min_score = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < listed.size(); ++i) {
    const nlohmann::json& piece = listed[i];
    if (!piece.is_array() || piece.size() != 2 || !piece[0].is_string() ||
        !piece[1].is_number() || !std::isfinite(piece[1].get<double>())) {
      pieces.elements()[i].fail("a token and its score, a finite number");
    }
    tokens.emplace_back(piece[0].get<std::string>(), static_cast<int64_t>(i));
    const double score = twice_rounded(piece[1].get<double>());
    options.scores.emplace_back(score);
    min_score = std::min(min_score, score);
  }
  options.unk_score = min_score - kUnkPenalty;
  if (const auto unk_id = section.find_set("unk_id")) {
    options.unk_id = static_cast<uint32_t>(unk_id->integer(
        {.min = 0, .max = static_cast<int64_t>(listed.size()) - 1}));
  }
  options.byte_fallback = section.get_or("byte_fallback", false);
  return std::make_unique<Unigram>(
      Vocabulary(std::move(tokens), pieces.place()), std::move(options));
}

std::unique_ptr<const TokenModel> read_wordpiece(
    const JsonValue& section,
    bool has_bytes) {
  WordPieceOptions options;
  options.has_bytes = has_bytes;
  options.unk_token = section.at("unk_token").as<std::string>();
  options.continuing_prefix =
      section.at("continuing_subword_prefix").as<std::string>();
  options.max_characters_per_word =
      section.at("max_input_chars_per_word").integer();
  return std::make_unique<WordPiece>(
      read_vocabulary_of_ids(section.at("vocab")), std::move(options));
}

std::unique_ptr<const TokenModel> read_word_level(
    const JsonValue& section,
    bool has_bytes) {
  return std::make_unique<WordLevel>(
      read_vocabulary_of_ids(section.at("vocab")),
      section.at("unk_token").as<std::string>(),
      has_bytes);
}

struct TokenModelKind {
  const char* type;
  std::unique_ptr<const TokenModel> (*read)(const JsonValue&, bool);
  /// Fields by which files of the time before 'type' are told apart; the first
  /// kind that fits.
  std::vector<const char*> fields;
};

const std::array<TokenModelKind, 4>& token_model_kinds() {
  static const std::array<TokenModelKind, 4> kinds{{
      {"BPE", read_bpe, {"vocab", "merges"}},
      {"WordPiece",
       read_wordpiece,
       {"vocab",
        "unk_token",
        "continuing_subword_prefix",
        "max_input_chars_per_word"}},
      {"WordLevel", read_word_level, {"vocab", "unk_token"}},
      {"Unigram", read_unigram, {"vocab"}},
  }};
  return kinds;
}

} // namespace

std::unique_ptr<const TokenModel> read_token_model(
    const JsonValue& section,
    bool has_bytes) {
  const auto type = section.find("type");
  const std::string name = type ? type->as<std::string>() : "";
  for (const TokenModelKind& kind : token_model_kinds()) {
    const bool fits =
        type ? name == kind.type
             : std::all_of(
                   kind.fields.begin(),
                   kind.fields.end(),
                   [&](const char* key) { return section.find(key); });
    if (fits) {
      return kind.read(section, has_bytes);
    }
  }
  const char* const expected = "BPE, Unigram, WordLevel or WordPiece";
  if (type) {
    type->fail(expected);
  }
  section.fail(std::string("an object with 'type', ") + expected);
}

} // namespace tessera::text
