// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/next_token.h"

#include "tessera/zoo/generation/score_rules.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <limits>

namespace tessera::zoo {

namespace {

/// Scores below the row's `limit` [B, 1] become impossible.
void drop_below(at::Tensor& scores, const at::Tensor& limit) {
  scores.masked_fill_(scores.lt(limit), kImpossible);
}

} // namespace

NextToken::NextToken(const GenerateOptions& options)
    : options_(options),
      generator_(at::detail::createCPUGenerator(options.seed)) {}

at::Tensor NextToken::choose(at::Tensor scores) {
  if (!options_.do_sample) {
    return scores.argmax(1);
  }
  scores.div_(options_.temperature);
  keep_likeliest(scores);
  return torch::multinomial(
             scores.softmax(1), 1, /*replacement=*/false, generator_)
      .squeeze(1);
}

void NextToken::keep_likeliest(at::Tensor& scores) const {
  if (options_.top_k > 0 && options_.top_k < scores.size(1)) {
    drop_below(
        scores,
        std::get<0>(scores.topk(options_.top_k))
            .narrow(1, options_.top_k - 1, 1));
  }
  if (options_.top_p < 1) {
    // Drops the least likely tokens whose probabilities add up to at most 1 -
    // top_p.
    const auto [sorted, order] = scores.sort(1);
    at::Tensor drops = sorted.softmax(1).cumsum(1).le(1 - options_.top_p);
    drops.select(1, -1).fill_(false);
    scores.masked_fill_(
        torch::zeros_like(drops).scatter(1, order, drops), kImpossible);
  }
  if (options_.min_p > 0) {
    const at::Tensor chances = scores.softmax(1);
    scores.masked_fill_(
        chances.lt(chances.amax(1, true) * options_.min_p), kImpossible);
  }
}

} // namespace tessera::zoo
