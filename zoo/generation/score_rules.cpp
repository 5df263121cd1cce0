// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/score_rules.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>

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
  at::Tensor room = at::constant_pad_nd(scores, {0, 1});
  if (padding.defined()) {
    places = tokens.masked_fill(
        torch::arange(tokens.size(1)).lt(padding.unsqueeze(1)), scores.size(1));
  }
  room.scatter_(
      1, places, torch::where(seen.lt(0), seen * penalty, seen / penalty));
  scores = room.narrow(1, 0, scores.size(1)).contiguous();
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

} // namespace

void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const at::Tensor& tokens,
    int64_t written,
    const at::Tensor& padding) {
  if (options.repetition_penalty != 1) {
    penalise(options.repetition_penalty, scores, tokens, padding);
  }
  if (options.no_repeat_ngram_size > 0) {
    forbid_repeats(options.no_repeat_ngram_size, scores, tokens);
  }
  for (const int64_t end : options.eos_token_id) {
    TESSERA_CHECK(
        end >= 0 && end < scores.size(1),
        "eos_token_id is {}; the vocabulary has {} tokens",
        end,
        scores.size(1));
    if (written < options.min_new_tokens) {
      scores.select(1, end).fill_(kImpossible);
    }
  }
}

} // namespace tessera::zoo
