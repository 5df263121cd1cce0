// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/bpe.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>

namespace tessera::text {
namespace {

bool can_divide_at_spaces(
    const Vocabulary& vocabulary,
    const std::vector<Bpe::Merge>& merges,
    const BpeOptions& options) {
  // A word that is a token could be divided before it is found.
  if (options.has_bytes || options.ignore_merges ||
      !options.continuing_prefix.empty() ||
      !options.end_of_word_suffix.empty() || !vocabulary.find(kEscapedSpace)) {
    return false;
  }
  return std::none_of(merges.begin(), merges.end(), [&](const auto& merge) {
    return has_inner_space(vocabulary.token(merge.merged));
  });
}

} // namespace

struct Bpe::Work : Scratch {
  BpeWord word;
  std::string written;
};

Bpe::Bpe(
    Vocabulary vocabulary,
    const std::vector<Merge>& merges,
    BpeOptions options)
    : CachedTokenModel(
          std::move(vocabulary), // which happens after this:
          {.has_bytes = options.has_bytes,
           .divides_at_spaces =
               can_divide_at_spaces(vocabulary, merges, options)}),
      options_(std::move(options)) {
  const Vocabulary& known = this->vocabulary();
  if (options_.unk_token) {
    unk_id_ = known.find(*options_.unk_token).value_or(kNone);
  }
  if (options_.byte_fallback) {
    byte_tokens_ = byte_tokens(known);
  }
  for (size_t form = 0; form < characters_.size(); ++form) {
    for (char32_t c = 0; c < kTableSize; ++c) {
      std::string token = form & 1 ? options_.continuing_prefix : "";
      append_utf8(token, c);
      token += form & 2 ? options_.end_of_word_suffix : "";
      characters_[form][c] = known.find(token).value_or(kNone);
    }
  }
  merges_.reserve(merges.size());
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    merges_.add(merge.left, merge.right, rank, merge.merged);
  }
}

std::unique_ptr<CachedTokenModel::Scratch> Bpe::make_scratch() const {
  return std::make_unique<Work>();
}

uint32_t Bpe::find_character(
    std::string_view character,
    bool is_first,
    bool is_last,
    std::string& written) const {
  const char32_t c = code_point_at(character, 0);
  if (c < kTableSize) {
    return characters_[(is_first ? 0 : 1) + (is_last ? 2 : 0)][c];
  }
  return vocabulary()
      .find(write(character, is_first, is_last, written))
      .value_or(kNone);
}

std::string_view Bpe::write(
    std::string_view character,
    bool is_first,
    bool is_last,
    std::string& written) const {
  written.clear();
  if (!is_first) {
    written += options_.continuing_prefix;
  }
  written += character;
  if (is_last) {
    written += options_.end_of_word_suffix;
  }
  return written;
}

bool Bpe::add_bytes(std::string_view written, BpeWord& word) const {
  const auto token_of = [&](char byte) {
    return byte_tokens_[static_cast<unsigned char>(byte)];
  };
  if (!std::all_of(written.begin(), written.end(), token_of)) {
    return false;
  }
  for (const char byte : written) {
    word.add(*token_of(byte), 1);
  }
  return true;
}

void Bpe::add_characters(std::string_view word, Work& work) const {
  BpeWord& symbols = work.word;
  uint32_t unknown_bytes = 0; // that have not become a token yet
  const auto add_unknown = [&] {
    if (unknown_bytes > 0) {
      symbols.add(unk_id_, unknown_bytes);
      unknown_bytes = 0;
    }
  };
  for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
    end = begin + utf8_length(word, begin);
    const std::string_view character = word.substr(begin, end - begin);
    const bool is_first = begin == 0;
    const bool is_last = end == word.size();
    const uint32_t id =
        find_character(character, is_first, is_last, work.written);
    if (id != kNone) {
      add_unknown();
      symbols.add(id, static_cast<uint32_t>(character.size()));
      continue;
    }
    // The `tokenizers` library has bytes before an unknown token that is not
    // finished.
    if (options_.byte_fallback &&
        add_bytes(write(character, is_first, is_last, work.written), symbols)) {
      continue;
    }
    if (!options_.unk_token) {
      continue;
    }
    TESSERA_CHECK(
        unk_id_ != kNone,
        "the BPE vocabulary lacks '{}' and the unknown token '{}'; set 'unk_token' to one of its tokens, or to null to leave unknown characters out",
        character,
        *options_.unk_token);
    if (!options_.fuse_unk) {
      add_unknown();
    }
    unknown_bytes += static_cast<uint32_t>(character.size());
  }
  add_unknown();
}

void Bpe::divide(
    std::string_view word,
    Scratch& scratch,
    std::vector<WordToken>& tokens) const {
  if (options_.ignore_merges) {
    if (const auto id = find(word)) {
      tokens.push_back({*id, {0, static_cast<uint32_t>(word.size())}});
      return;
    }
  }
  auto& work = static_cast<Work&>(scratch);
  BpeWord& symbols = work.word;
  symbols.symbols.clear();
  add_characters(word, work);
  if (symbols.symbols.empty()) {
    return;
  }
  merges_.apply(symbols, [](uint32_t, uint32_t, uint32_t) {});
  const auto word_bytes = static_cast<uint32_t>(word.size());
  uint32_t begin = 0;
  for (uint32_t i = 0; i != kNone; i = symbols.symbols[i].next) {
    const BpeSymbol& symbol = symbols.symbols[i];
    // The bytes of a prefix or suffix, if they became tokens, are too many.
    const uint32_t end = std::min(begin + symbol.bytes, word_bytes);
    tokens.push_back({symbol.id, {begin, end}});
    begin = end;
  }
}

} // namespace tessera::text
