// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/next_token.h"

#include "tessera/runtime/core/error.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Scores below the row's `limit` [B, 1] become impossible.
void drop_below(at::Tensor& scores, const at::Tensor& limit) {
  scores.masked_fill_(scores.lt(limit), kNever);
}

} // namespace

NextToken::NextToken(const GenerateOptions& options, at::Tensor padding)
    : options_(options),
      padding_(std::move(padding)),
      generator_(at::detail::createCPUGenerator(options.seed)) {
  options_.check();
}

at::Tensor NextToken::choose(
    const at::Tensor& logits,
    const at::Tensor& tokens,
    int64_t written) {
  at::Tensor scores = logits.detach().to(at::kCPU, at::kFloat).clone();
  penalise(scores, tokens);
  forbid_repeats(scores, tokens);
  if (written < options_.min_new_tokens) {
    for (const int64_t end : options_.eos_token_id) {
      TESSERA_CHECK(
          end >= 0 && end < scores.size(1),
          "eos_token_id is ",
          end,
          "; the vocabulary has ",
          scores.size(1),
          " tokens");
      scores.select(1, end).fill_(kNever);
    }
  }
  if (!options_.do_sample) {
    return scores.argmax(1);
  }
  scores.div_(options_.temperature);
  keep_likeliest(scores);
  return torch::multinomial(
             scores.softmax(1), 1, /*replacement=*/false, generator_)
      .squeeze(1);
}

void NextToken::penalise(at::Tensor& scores, const at::Tensor& tokens) const {
  const double penalty = options_.repetition_penalty;
  if (penalty == 1) {
    return;
  }
  const at::Tensor seen = scores.gather(1, tokens);
  at::Tensor places = tokens;
  // Where there is no text goes beyond the vocabulary.
  at::Tensor room = at::constant_pad_nd(scores, {0, 1});
  if (padding_.defined()) {
    places = tokens.masked_fill(
        torch::arange(tokens.size(1)).lt(padding_.unsqueeze(1)),
        scores.size(1));
  }
  room.scatter_(
      1, places, torch::where(seen.lt(0), seen * penalty, seen / penalty));
  scores = room.narrow(1, 0, scores.size(1)).contiguous();
}

void NextToken::forbid_repeats(at::Tensor& scores, const at::Tensor& tokens)
    const {
  const int64_t size = options_.no_repeat_ngram_size;
  const int64_t length = tokens.size(1);
  if (size == 0 || length + 1 < size) {
    return;
  }
  const at::Tensor texts = tokens.contiguous();
  for (int64_t row = 0; row < texts.size(0); ++row) {
    const int64_t* text = texts.const_data_ptr<int64_t>() + row * length;
    const int64_t* last = text + length - (size - 1);
    for (const int64_t* at = text; at + size <= text + length; ++at) {
      if (std::equal(last, text + length, at)) {
        scores[row][at[size - 1]].fill_(kNever);
      }
    }
  }
}

void NextToken::keep_likeliest(at::Tensor& scores) const {
  if (options_.top_k > 0 && options_.top_k < scores.size(1)) {
    drop_below(
        scores,
        std::get<0>(scores.topk(options_.top_k))
            .narrow(1, options_.top_k - 1, 1));
  }
  if (options_.top_p < 1) {
    // From the least likely on: those that together have no more than 1 - p.
    const auto [sorted, order] = scores.sort(1);
    at::Tensor drops = sorted.softmax(1).cumsum(1).le(1 - options_.top_p);
    drops.select(1, -1).fill_(false);
    scores.masked_fill_(
        torch::zeros_like(drops).scatter(1, order, drops), kNever);
  }
  if (options_.min_p > 0) {
    const at::Tensor chances = scores.softmax(1);
    scores.masked_fill_(
        chances.lt(chances.amax(1, true) * options_.min_p), kNever);
  }
}

} // namespace tessera::zoo
