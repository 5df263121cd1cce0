// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/sentencepiece_bpe.h"

#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

namespace tessera::text {
namespace {

/// Whether merges make it.
bool is_mergeable(SentencePieceKind kind) {
  return kind == SentencePieceKind::kNormal ||
         kind == SentencePieceKind::kUserDefined ||
         kind == SentencePieceKind::kUnused;
}

bool has_one_character(std::string_view text) {
  return utf8_length(text, 0) == text.size();
}

bool can_divide_pieces_at_spaces(
    const Vocabulary& vocabulary,
    const SentencePieceModel& model) {
  // How an unused piece is divided again depends on the whole text.
  return vocabulary.find(kEscapedSpace) &&
         std::none_of(
             model.pieces.begin(), model.pieces.end(), [](const auto& piece) {
               return piece.kind == SentencePieceKind::kUnused ||
                      has_inner_space(piece.text);
             });
}

/// Ranks of scores; equal ones have one rank.
std::map<float, uint32_t, std::greater<>> ranks_of(
    const std::vector<SentencePiece>& pieces) {
  std::map<float, uint32_t, std::greater<>> ranks;
  for (const SentencePiece& piece : pieces) {
    ranks[piece.score] = 0;
  }
  uint32_t rank = 0;
  for (auto& [score, rank_of_score] : ranks) {
    rank_of_score = rank++;
  }
  return ranks;
}

} // namespace

struct SentencePieceBpe::Work : Scratch {
  /// A pair of neighbors that make an unused piece.
  struct Parts {
    uint32_t merged = 0;
    uint32_t left = 0;
    uint32_t right = 0;
  };
  BpeWord word;
  std::vector<Parts> unused;
};

SentencePieceBpe::SentencePieceBpe(
    Vocabulary&& vocabulary,
    const SentencePieceModel& model,
    uint32_t unk)
    : CachedTokenModel(
          std::move(vocabulary), // which happens after this:
          {.divides_at_spaces =
               can_divide_pieces_at_spaces(vocabulary, model)}),
      unk_(unk),
      user_defined_({}) {
  if (model.byte_fallback) {
    byte_tokens_ = byte_tokens(this->vocabulary());
  }
  std::vector<std::pair<std::string_view, uint32_t>> user_defined;
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    add_symbol(id, model.pieces[id].text.size());
    symbols_[id].is_unused =
        model.pieces[id].kind == SentencePieceKind::kUnused;
  }
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePiece& piece = model.pieces[id];
    if (piece.kind == SentencePieceKind::kUserDefined) {
      user_defined.emplace_back(
          this->vocabulary().token(id), add_symbol(id, piece.text.size()));
    }
  }
  user_defined_ = ByteTrie(std::move(user_defined));
  other_character_ = add_symbol(unk_, 0);
  add_characters(model);
  if (model.algorithm == SentencePieceAlgorithm::kBpe) {
    add_merges(model);
  }
}

uint32_t SentencePieceBpe::add_symbol(uint32_t token, size_t bytes) {
  symbols_.push_back({.token = token, .bytes = static_cast<uint32_t>(bytes)});
  return static_cast<uint32_t>(symbols_.size() - 1);
}

void SentencePieceBpe::add_characters(const SentencePieceModel& model) {
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    if (has_one_character(model.pieces[id].text)) {
      characters_.emplace(code_point_at(model.pieces[id].text, 0), id);
    }
  }
  for (const SentencePiece& piece : model.pieces) {
    if (is_mergeable(piece.kind)) {
      for_each_code_point(piece.text, [&](char32_t c, size_t at) {
        if (!characters_.contains(c)) {
          characters_[c] = add_symbol(unk_, utf8_length(piece.text, at));
        }
      });
    }
  }
}

void SentencePieceBpe::add_merges(const SentencePieceModel& model) {
  const auto ranks = ranks_of(model.pieces);
  struct Merge {
    uint32_t left = 0;
    uint32_t right = 0;
    uint32_t merged = 0;
  };
  std::vector<Merge> merges;
  const auto find_symbol = [&](std::string_view text) -> uint32_t {
    if (has_one_character(text)) {
      return characters_.at(code_point_at(text, 0));
    }
    const auto id = find(text);
    return id && is_mergeable(model.pieces[*id].kind) ? *id : BpeMerges::kNone;
  };
  for (uint32_t id = 0; id < model.pieces.size(); ++id) {
    if (!is_mergeable(model.pieces[id].kind)) {
      continue;
    }
    const std::string_view text = model.pieces[id].text;
    for (size_t at = utf8_length(text, 0); at < text.size();
         at += utf8_length(text, at)) {
      const uint32_t left = find_symbol(text.substr(0, at));
      const uint32_t right = left == BpeMerges::kNone
                                 ? BpeMerges::kNone
                                 : find_symbol(text.substr(at));
      if (right != BpeMerges::kNone) {
        merges.push_back({left, right, id});
      }
    }
  }
  merges_.reserve(merges.size());
  for (const Merge& merge : merges) {
    merges_.add(
        merge.left,
        merge.right,
        ranks.at(model.pieces[merge.merged].score),
        merge.merged);
  }
}

std::unique_ptr<CachedTokenModel::Scratch> SentencePieceBpe::make_scratch()
    const {
  return std::make_unique<Work>();
}

void SentencePieceBpe::append_symbol(
    uint32_t symbol,
    ByteRange range,
    std::string_view word,
    const Work& work,
    std::vector<WordToken>& tokens) const {
  uint32_t token = symbols_[symbol].token;
  if (symbols_[symbol].is_unused) {
    // The pair that was found last counts, wherever in the text that was.
    const auto parts = std::find_if(
        work.unused.rbegin(), work.unused.rend(), [&](const auto& pair) {
          return pair.merged == symbol;
        });
    if (parts != work.unused.rend()) {
      const uint32_t middle = range.begin + symbols_[parts->left].bytes;
      append_symbol(parts->left, {range.begin, middle}, word, work, tokens);
      append_symbol(parts->right, {middle, range.end}, word, work, tokens);
      return;
    }
    token = unk_;
  }
  if (token != unk_) {
    tokens.push_back({token, range});
    return;
  }
  if (!byte_tokens_.empty()) {
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const auto byte = static_cast<unsigned char>(word[i]);
      tokens.push_back({*byte_tokens_[byte], {i, i + 1}});
    }
    return;
  }
  if (range.begin > 0 && tokens.back().id == unk_) {
    tokens.back().bytes.end = range.end;
    return;
  }
  tokens.push_back({unk_, range});
}

void SentencePieceBpe::divide(
    std::string_view word,
    Scratch& scratch,
    std::vector<WordToken>& tokens) const {
  auto& work = static_cast<Work&>(scratch);
  auto& symbols = work.word.symbols;
  symbols.clear();
  work.unused.clear();
  for (size_t at = 0; at < word.size();) {
    size_t length = 0;
    uint32_t symbol = other_character_;
    user_defined_.for_each_prefix(
        word.substr(at), [&](size_t bytes, uint32_t found) {
          length = bytes;
          symbol = found;
        });
    if (length == 0) {
      length = utf8_length(word, at);
      const auto found = characters_.find(code_point_at(word, at));
      symbol = found == characters_.end() ? symbol : found->second;
    }
    work.word.add(symbol, static_cast<uint32_t>(length));
    at += length;
  }
  merges_.apply(work.word, [&](uint32_t left, uint32_t right, uint32_t merged) {
    if (symbols_[merged].is_unused) {
      work.unused.push_back({merged, left, right});
    }
  });
  uint32_t begin = 0;
  for (uint32_t i = 0; i != BpeMerges::kNone; i = symbols[i].next) {
    const uint32_t end = begin + symbols[i].bytes;
    append_symbol(symbols[i].id, {begin, end}, word, work, tokens);
    begin = end;
  }
}

} // namespace tessera::text
