// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/single_search.h"

#include "tessera/zoo/generation/score_rules.h"

#include <torch/types.h>

#include <utility>
#include <vector>

namespace tessera::zoo {

SingleSearch::SingleSearch(
    const GenerateOptions& options,
    const at::Tensor& rows,
    const at::Tensor& padding,
    EndsSequence ends)
    : options_(options),
      ends_(std::move(ends)),
      next_(
          options,
          rows.size(0) / options.num_return_sequences,
          options.num_return_sequences),
      rows_(rows),
      padding_(padding),
      given_(rows.size(1)),
      ended_(torch::zeros({rows.size(0)}, torch::kBool)) {}

TokenProposal SingleSearch::propose(const at::Tensor& logits) {
  at::Tensor scores = logits.to(at::kCPU, at::kFloat).clone();
  apply_score_rules(options_, scores, RowTexts(rows_, padding_), written());
  return {next_.choose(scores, written()).unsqueeze(1), {}};
}

TokenProposal SingleSearch::blank() const {
  return {torch::empty({rows_.size(0), 1}, torch::kLong), {}};
}

at::Tensor SingleSearch::advance(const TokenProposal& proposal) {
  const at::Tensor next =
      proposal.tokens.masked_fill(ended_.unsqueeze(1), options_.pad_token_id);
  rows_ = at::cat({rows_, next}, 1);
  std::vector<int64_t> stopped;
  for (int64_t row = 0; ends_ && row < rows_.size(0); ++row) {
    const int64_t* begin = rows_[row].const_data_ptr<int64_t>() + given_;
    if (!ended_[row].item<bool>() &&
        ends_(row, {begin, static_cast<size_t>(written())})) {
      stopped.push_back(row);
    }
  }
  for (const int64_t end : options_.eos_token_id) {
    ended_ |= proposal.tokens.select(1, 0).eq(end);
  }
  for (const int64_t row : stopped) {
    ended_[row] = true;
  }
  return {};
}

bool SingleSearch::is_done() const {
  return written() >= options_.max_new_tokens || ended_.all().item<bool>();
}

} // namespace tessera::zoo
