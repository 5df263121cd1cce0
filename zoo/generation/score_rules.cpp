// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/score_rules.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

namespace tessera::zoo {

namespace {

void penalise(
    double penalty,
    at::Tensor& scores,
    const at::Tensor& tokens,
    const at::Tensor& padding) {
  const at::Tensor seen = scores.gather(1, tokens);
  at::Tensor places = tokens;
  // Padding scatters into an extra column after the vocabulary.
  at::Tensor padded = at::constant_pad_nd(scores, {0, 1});
  if (padding.defined()) {
    places = tokens.masked_fill(
        torch::arange(tokens.size(1)).lt(padding.unsqueeze(1)), scores.size(1));
  }
  padded.scatter_(
      1, places, torch::where(seen.lt(0), seen * penalty, seen / penalty));
  scores = padded.narrow(1, 0, scores.size(1)).contiguous();
}

/// Forbids tokens that would repeat an n-gram of `size` tokens.
void forbid_repeats(
    int64_t size,
    at::Tensor& scores,
    const at::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  if (length + 1 < size) {
    return;
  }
  const at::Tensor texts = tokens.contiguous();
  for (int64_t row = 0; row < texts.size(0); ++row) {
    const int64_t* text = texts.const_data_ptr<int64_t>() + row * length;
    const int64_t* last = text + length - (size - 1);
    for (const int64_t* at = text; at + size <= text + length; ++at) {
      if (std::equal(last, text + length, at)) {
        scores[row][at[size - 1]].fill_(kImpossible);
      }
    }
  }
}

void check_in_vocabulary(
    const char* option,
    int64_t token,
    const at::Tensor& scores) {
  TESSERA_CHECK(
      token >= 0 && token < scores.size(1),
      "{} is {}; the vocabulary has {} tokens",
      option,
      token,
      scores.size(1));
}

void forbid(
    const char* option,
    const std::vector<int64_t>& some,
    at::Tensor& scores) {
  for (const int64_t token : some) {
    check_in_vocabulary(option, token, scores);
    scores.select(1, token).fill_(kImpossible);
  }
}

/// Makes all other tokens impossible.
void force(
    const char* option,
    const std::vector<int64_t>& some,
    at::Tensor& scores) {
  scores.fill_(kImpossible);
  for (const int64_t token : some) {
    check_in_vocabulary(option, token, scores);
    scores.select(1, token).zero_();
  }
}

/// Adds to the score of the sequence's last token in the rows that end with its
/// other tokens.
void add_bias(
    const char* option,
    const std::vector<int64_t>& sequence,
    double bias,
    at::Tensor& scores,
    const at::Tensor& tokens) {
  for (const int64_t token : sequence) {
    check_in_vocabulary(option, token, scores);
  }
  const auto before = static_cast<int64_t>(sequence.size()) - 1;
  if (before > tokens.size(1)) {
    return;
  }
  const at::Tensor texts = tokens.contiguous();
  for (int64_t row = 0; row < texts.size(0); ++row) {
    const int64_t* end =
        texts.const_data_ptr<int64_t>() + (row + 1) * texts.size(1);
    if (std::equal(end - before, end, sequence.begin())) {
      scores[row][sequence.back()].add_(bias);
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

void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const at::Tensor& tokens,
    int64_t written,
    const at::Tensor& padding) {
  for (const auto& [sequence, bias] : options.sequence_bias) {
    add_bias("sequence_bias", sequence, bias, scores, tokens);
  }
  if (options.repetition_penalty != 1) {
    penalise(options.repetition_penalty, scores, tokens, padding);
  }
  if (options.no_repeat_ngram_size > 0) {
    forbid_repeats(options.no_repeat_ngram_size, scores, tokens);
  }
  const auto& ends = options.eos_token_id;
  for (const auto& word : options.bad_words_ids) {
    const bool is_end =
        word.size() == 1 &&
        std::find(ends.begin(), ends.end(), word.front()) != ends.end();
    if (!is_end) { // as by transformers
      add_bias("bad_words_ids", word, kImpossible, scores, tokens);
    }
  }
  for (const int64_t end : ends) {
    check_in_vocabulary("eos_token_id", end, scores);
    if (written < options.min_new_tokens) {
      scores.select(1, end).fill_(kImpossible);
    }
  }
  const bool is_short = tokens.size(1) - written == 1; // the prompt
  const auto& begin = options.forced_bos_token_id;
  if (begin && is_short && written == 0) {
    force("forced_bos_token_id", {*begin}, scores);
  }
  if (!options.forced_eos_token_id.empty() &&
      written == options.max_new_tokens - 1) {
    force("forced_eos_token_id", options.forced_eos_token_id, scores);
  }
  forbid("suppress_tokens", options.suppress_tokens, scores);
  if (written == (begin && is_short ? 1 : 0)) {
    forbid("begin_suppress_tokens", options.begin_suppress_tokens, scores);
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
