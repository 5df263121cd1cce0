// SPDX-License-Identifier: Apache-2.0
#pragma once
// `BeamSearch` extends several hypotheses of each prompt side by side.

#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/generation/row_draws.h"
#include "tessera/zoo/generation/text_search.h"

namespace tessera::zoo {

/// Beam search as in transformers' generate(). Keeps GenerateOptions::num_beams
/// sequences for each prompt: among all continuations, those with the highest
/// sum of token log-probabilities. A sequence that ends is set aside with the
/// score sum / (new tokens)^length_penalty; the best of these are the result.
/// GenerateOptions::early_stopping decides when the search stops.
///
/// With do_sample the continuations are drawn, without replacement, by their
/// sums of log-probabilities after apply_sampling_rules(); the best of those
/// that are drawn go on. Draws depend on the seed, the number of the prompt,
/// the position and the scores alone.
class BeamSearch : public TextSearch {
 public:
  /// @param rows [prompts * num_beams, S] int64: the prompts, each repeated
  ///     num_beams times in a row.
  /// @param padding see RowTexts.
  BeamSearch(
      const GenerateOptions& options,
      const at::Tensor& rows,
      const at::Tensor& padding,
      EndsSequence ends = {});

  /// @throws tessera::Error if the vocabulary has too few tokens for the beams.
  TokenProposal propose(const at::Tensor& logits) override;
  TokenProposal blank() const override;
  at::Tensor advance(const TokenProposal& proposal) override;
  const at::Tensor& rows() const override {
    return rows_;
  }
  bool is_done() const override {
    return is_done_;
  }

  /// num_return_sequences per prompt, best first; shorter ones are padded on
  /// the right with pad_token_id.
  at::Tensor result() const override;

 private:
  /// The number of best continuations considered: enough that num_beams of them
  /// do not end.
  int64_t candidates() const;
  int64_t written() const {
    return rows_.size(1) - given_;
  }
  /// Which of the candidates end with their last token.
  /// @param texts [prompts, candidates, length so far + 1].
  at::Tensor ends(const at::Tensor& texts) const;
  void set_aside(
      const at::Tensor& texts,
      const at::Tensor& scores,
      const at::Tensor& ended);
  /// Whether an unfinished sequence may still beat a finished one, [prompts,
  /// 1].
  at::Tensor may_improve() const;

  GenerateOptions options_;
  EndsSequence ends_;
  int64_t texts_;
  RowDraws draws_; ///< of the prompts
  int64_t given_; ///< prompt length in tokens
  at::Tensor rows_;
  at::Tensor padding_;
  at::Tensor scores_; ///< of rows_, [prompts, beams]
  at::Tensor best_; ///< [prompts, beams, given + max_new_tokens], padded
  at::Tensor best_lengths_; ///< new tokens of each, [prompts, beams] int64
  at::Tensor best_scores_; ///< [prompts, beams]
  at::Tensor is_ended_; ///< of best_, [prompts, beams] bool
  at::Tensor can_improve_; ///< [prompts, 1] bool
  bool is_done_ = false;
};

} // namespace tessera::zoo
