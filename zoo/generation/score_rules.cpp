// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/score_rules.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>
#include <span>
#include <vector>

namespace tessera::zoo {

namespace {

/// Of one row.
std::span<float> scores_of(at::Tensor& scores, int64_t row) {
  const int64_t vocab = scores.size(1);
  return {
      scores.mutable_data_ptr<float>() + row * vocab,
      static_cast<size_t>(vocab)};
}

void penalise(double penalty, at::Tensor& scores, const RowTexts& texts) {
  const auto factor = static_cast<float>(penalty);
  for (int64_t row = 0; row < texts.rows(); ++row) {
    const auto row_scores = scores_of(scores, row);
    const std::vector<float> before(row_scores.begin(), row_scores.end());
    for (const int64_t token : texts[row]) { // several times the same
      if (const auto i = static_cast<size_t>(token); i < row_scores.size()) {
        row_scores[i] = before[i] < 0 ? before[i] * factor : before[i] / factor;
      }
    }
  }
}

/// Forbids tokens that would repeat an n-gram of `size` tokens.
void forbid_repeats(size_t size, at::Tensor& scores, const RowTexts& texts) {
  for (int64_t row = 0; row < texts.rows(); ++row) {
    const auto text = texts[row];
    if (text.size() < size) {
      continue;
    }
    const auto row_scores = scores_of(scores, row);
    const auto last = text.last(size - 1);
    for (size_t at = 0; at + size <= text.size(); ++at) {
      const auto next = static_cast<size_t>(text[at + size - 1]);
      if (next < row_scores.size() &&
          std::equal(last.begin(), last.end(), text.subspan(at).begin())) {
        row_scores[next] = kImpossible;
      }
    }
  }
}

void check_in_vocabulary(
    const char* option,
    int64_t token,
    const at::Tensor& scores) {
  TESSERA_CHECK(
      token >= 0 && token < scores.size(-1),
      "{} is {}; the vocabulary has {} tokens",
      option,
      token,
      scores.size(-1));
}

/// @param scores of rows, or of one row [vocabulary].
void forbid(
    const char* option,
    const std::vector<int64_t>& some,
    const at::Tensor& scores) {
  for (const int64_t token : some) {
    check_in_vocabulary(option, token, scores);
    scores.select(-1, token).fill_(kImpossible);
  }
}

/// Makes all other tokens impossible.
/// @param scores of rows, or of one row [vocabulary].
void force(
    const char* option,
    const std::vector<int64_t>& some,
    at::Tensor scores) {
  scores.fill_(kImpossible);
  for (const int64_t token : some) {
    check_in_vocabulary(option, token, scores);
    scores.select(-1, token).zero_();
  }
}

/// Adds to the score of the sequence's last token in the rows that end with its
/// other tokens.
void add_bias(
    const char* option,
    const std::vector<int64_t>& sequence,
    double bias,
    at::Tensor& scores,
    const RowTexts& texts) {
  for (const int64_t token : sequence) {
    check_in_vocabulary(option, token, scores);
  }
  const size_t before = sequence.size() - 1;
  for (int64_t row = 0; row < texts.rows(); ++row) {
    const auto text = texts[row];
    if (before > text.size()) {
      continue;
    }
    const auto end = text.last(before);
    if (std::equal(end.begin(), end.end(), sequence.begin())) {
      scores_of(scores, row)[static_cast<size_t>(sequence.back())] +=
          static_cast<float>(bias);
    }
  }
}

/// Scores below the row's `limit` [B, 1] become impossible.
void drop_below(at::Tensor& scores, const at::Tensor& limit) {
  scores.masked_fill_(scores.lt(limit), kImpossible);
}

/// The `count`th best score of each row, [B, 1].
at::Tensor best_score(const at::Tensor& scores, int64_t count) {
  return std::get<0>(scores.topk(count)).narrow(1, count - 1, 1);
}

} // namespace

RowTexts::RowTexts(const at::Tensor& tokens, const at::Tensor& padding)
    : tokens_(tokens.contiguous()),
      padding_(padding.defined() ? padding.contiguous() : padding) {}

std::span<const int64_t> RowTexts::operator[](int64_t row) const {
  const int64_t length = tokens_.size(1);
  const int64_t padding =
      padding_.defined() ? padding_.const_data_ptr<int64_t>()[row] : 0;
  const int64_t* begin = tokens_.const_data_ptr<int64_t>() + row * length;
  return {begin + padding, static_cast<size_t>(length - padding)};
}

void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const RowTexts& texts,
    int64_t written) {
  scores = scores.contiguous();
  for (const auto& [sequence, bias] : options.sequence_bias) {
    add_bias("sequence_bias", sequence, bias, scores, texts);
  }
  if (options.repetition_penalty != 1) {
    penalise(options.repetition_penalty, scores, texts);
  }
  if (options.no_repeat_ngram_size > 0) {
    forbid_repeats(
        static_cast<size_t>(options.no_repeat_ngram_size), scores, texts);
  }
  const auto& ends = options.eos_token_id;
  for (const auto& word : options.bad_words_ids) {
    const bool is_end =
        word.size() == 1 &&
        std::find(ends.begin(), ends.end(), word.front()) != ends.end();
    if (!is_end) { // as by transformers
      add_bias("bad_words_ids", word, kImpossible, scores, texts);
    }
  }
  for (const int64_t end : ends) {
    check_in_vocabulary("eos_token_id", end, scores);
    if (written < options.min_new_tokens) {
      scores.select(1, end).fill_(kImpossible);
    }
  }
  // What begins a text is decided by the length of its prompt.
  const auto& begin = options.forced_bos_token_id;
  const auto is_forced = [&](int64_t row) {
    return begin && static_cast<int64_t>(texts[row].size()) - written == 1;
  };
  for (int64_t row = 0; row < texts.rows(); ++row) {
    if (written == 0 && is_forced(row)) {
      force("forced_bos_token_id", {*begin}, scores[row]);
    }
  }
  if (!options.forced_eos_token_id.empty() &&
      written == options.max_new_tokens - 1) {
    force("forced_eos_token_id", options.forced_eos_token_id, scores);
  }
  forbid("suppress_tokens", options.suppress_tokens, scores);
  for (int64_t row = 0; row < texts.rows(); ++row) {
    if (written == (is_forced(row) ? 1 : 0)) {
      forbid(
          "begin_suppress_tokens", options.begin_suppress_tokens, scores[row]);
    }
  }
}

void apply_sampling_rules(const GenerateOptions& options, at::Tensor& scores) {
  const int64_t ends = static_cast<int64_t>(options.eos_token_id.size());
  const int64_t kept = std::min(
      options.num_beams > 1 ? 1 + std::max<int64_t>(ends, 1) : 1,
      scores.size(1));
  scores.div_(options.temperature);
  if (options.top_k > 0 && options.top_k < scores.size(1)) {
    drop_below(scores, best_score(scores, std::max(options.top_k, kept)));
  }
  if (options.top_p < 1) {
    // Drops the least likely tokens whose probabilities add up to at most 1 -
    // top_p.
    const auto [sorted, order] = scores.sort(1);
    at::Tensor drops = sorted.softmax(1).cumsum(1).le(1 - options.top_p);
    drops.narrow(1, scores.size(1) - kept, kept).fill_(false);
    scores.masked_fill_(
        torch::zeros_like(drops).scatter(1, order, drops), kImpossible);
  }
  if (options.min_p > 0) {
    const at::Tensor chances = scores.softmax(1);
    scores.masked_fill_(
        chances.lt(chances.amax(1, true) * options.min_p) &
            scores.lt(best_score(scores, kept)),
        kImpossible);
  }
}

} // namespace tessera::zoo
