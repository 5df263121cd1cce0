// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/unigram.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <utility>

namespace tessera::text {
namespace {

std::vector<std::pair<std::string_view, uint32_t>> strings_to_find(
    const Vocabulary& vocabulary,
    const UnigramOptions& options) {
  std::vector<std::pair<std::string_view, uint32_t>> strings;
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (options.scores[id] && !vocabulary.token(id).empty()) {
      strings.emplace_back(vocabulary.token(id), id);
    }
  }
  return strings;
}

} // namespace

struct Unigram::Work : Scratch {
  static constexpr uint32_t kNoPath = 0xffffffff;
  /// The end of the best path up to a place in the word.
  struct PathEnd {
    double score = 0; ///< of the path
    uint32_t begin = kNoPath; ///< of the last token
    uint32_t id = 0;
  };
  std::vector<PathEnd> ends; ///< by place in the word
  std::vector<WordToken> path; ///< from its end
};

Unigram::Unigram(Vocabulary vocabulary, UnigramOptions options)
    : CachedTokenModel(std::move(vocabulary), {.has_bytes = options.has_bytes}),
      options_(std::move(options)),
      trie_(strings_to_find(this->vocabulary(), options_)) {
  if (options_.byte_fallback) {
    byte_tokens_ = byte_tokens(this->vocabulary());
  }
}

std::unique_ptr<CachedTokenModel::Scratch> Unigram::make_scratch() const {
  return std::make_unique<Work>();
}

uint32_t Unigram::unk_id(std::string_view text) const {
  TESSERA_CHECK(
      options_.unk_id,
      "the Unigram vocabulary lacks '{}' and has no unknown token; set 'unk_id' to the id of one",
      text);
  return *options_.unk_id;
}

void Unigram::find_best_path(std::string_view word, Work& work) const {
  const bool is_float = options_.reference == UnigramReference::kSentencePiece;
  const auto rounded = [is_float](double score) {
    return is_float ? static_cast<double>(static_cast<float>(score)) : score;
  };
  auto& ends = work.ends;
  ends.assign(word.size() + 1, Work::PathEnd());
  for (uint32_t begin = 0; begin < word.size();) {
    const size_t character_bytes = utf8_length(word, begin);
    const double score_here = ends[begin].score;
    bool is_known = false; // the character
    // Of equal paths the one whose last token is the longest remains.
    const auto offer = [&](size_t length, double token_score, auto id) {
      Work::PathEnd& end = ends[begin + length];
      const double score = rounded(token_score + score_here);
      if (end.begin == Work::kNoPath || score > end.score) {
        end = {score, begin, id()};
      }
    };
    trie_.for_each_prefix(word.substr(begin), [&](size_t length, uint32_t id) {
      offer(length, *options_.scores[id], [&] { return id; });
      is_known = is_known || length == character_bytes;
    });
    if (!is_known) {
      offer(character_bytes, options_.unk_score, [&] {
        return unk_id(word.substr(begin, character_bytes));
      });
    }
    begin += static_cast<uint32_t>(character_bytes);
  }
  work.path.clear();
  for (auto end = static_cast<uint32_t>(word.size()); end > 0;) {
    const Work::PathEnd& last = ends[end];
    work.path.push_back({last.id, {last.begin, end}});
    end = last.begin;
  }
}

void Unigram::append_unknown(
    std::string_view word,
    ByteRange range,
    std::vector<WordToken>& tokens) const {
  const std::string_view text = word.substr(range.begin, range.size());
  if (options_.reference == UnigramReference::kTokenizers) {
    if (const auto id = find(text)) {
      tokens.push_back({*id, range});
      return;
    }
  }
  const auto token_of = [&](char byte) {
    return byte_tokens_[static_cast<unsigned char>(byte)];
  };
  if (options_.byte_fallback &&
      std::all_of(text.begin(), text.end(), token_of)) {
    for (const char byte : text) {
      tokens.push_back({*token_of(byte), range});
    }
    return;
  }
  tokens.push_back({unk_id(text), range});
}

void Unigram::divide(
    std::string_view word,
    Scratch& scratch,
    std::vector<WordToken>& tokens) const {
  auto& work = static_cast<Work&>(scratch);
  find_best_path(word, work);
  for (auto token = work.path.rbegin(); token != work.path.rend();) {
    if (token->id != options_.unk_id) {
      tokens.push_back(*token);
      ++token;
      continue;
    }
    ByteRange run = token->bytes;
    for (++token; token != work.path.rend() && token->id == options_.unk_id;
         ++token) {
      run.end = token->bytes.end;
    }
    append_unknown(word, run, tokens);
  }
}

} // namespace tessera::text
