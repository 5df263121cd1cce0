// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/single_search.h"

#include "tessera/zoo/generation/score_rules.h"

#include <torch/types.h>

namespace tessera::zoo {

SingleSearch::SingleSearch(
    const GenerateOptions& options,
    const at::Tensor& rows,
    const at::Tensor& padding)
    : options_(options),
      next_(options),
      rows_(rows),
      padding_(padding),
      given_(rows.size(1)),
      ended_(torch::zeros({rows.size(0)}, torch::kBool)) {}

TokenProposal SingleSearch::propose(const at::Tensor& logits) {
  at::Tensor scores = logits.to(at::kCPU, at::kFloat).clone();
  apply_score_rules(options_, scores, rows_, written(), padding_);
  return {next_.choose(scores).unsqueeze(1), {}};
}

TokenProposal SingleSearch::blank() const {
  return {torch::empty({rows_.size(0), 1}, torch::kLong), {}};
}

at::Tensor SingleSearch::advance(const TokenProposal& proposal) {
  const at::Tensor next =
      proposal.tokens.masked_fill(ended_.unsqueeze(1), options_.pad_token_id);
  rows_ = at::cat({rows_, next}, 1);
  for (const int64_t end : options_.eos_token_id) {
    ended_ |= proposal.tokens.select(1, 0).eq(end);
  }
  return {};
}

bool SingleSearch::is_done() const {
  return written() >= options_.max_new_tokens || ended_.all().item<bool>();
}

} // namespace tessera::zoo
