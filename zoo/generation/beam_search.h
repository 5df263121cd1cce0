// SPDX-License-Identifier: Apache-2.0
#pragma once
// Texts of which the likeliest ways to go on are followed side by side.

#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/generation/text_search.h"

namespace tessera::zoo {

/// Keeps GenerateOptions::num_beams texts of each prompt: of all their next
/// tokens, those with which the logarithms of a text's probabilities add up to
/// most. A text that ends is set aside, with that sum over its new tokens to
/// the power of length_penalty; the best of these are the result. It stops as
/// transformers' generate() does, by early_stopping.
class BeamSearch : public TextSearch {
 public:
  /// @param rows [texts * num_beams, S] int64, what the texts begin with,
  ///     those of a text one after the other.
  /// @param padding see apply_score_rules().
  BeamSearch(
      const GenerateOptions& options,
      const at::Tensor& rows,
      const at::Tensor& padding);

  /// @throws tessera::Error when the vocabulary has too few tokens for the
  ///     beams.
  TokenProposal propose(const at::Tensor& logits) override;
  TokenProposal blank() const override;
  at::Tensor advance(const TokenProposal& proposal) override;
  const at::Tensor& rows() const override {
    return rows_;
  }
  bool is_done() const override {
    return is_done_;
  }

  /// num_return_sequences of each text, the best first; pad_token_id behind
  /// those that are shorter.
  at::Tensor result() const override;

 private:
  /// Best ways to go on that are looked at: of those that do not end there must
  /// be as many as beams.
  int64_t candidates() const;
  int64_t written() const {
    return rows_.size(1) - given_;
  }
  at::Tensor ends(const at::Tensor& tokens) const;
  void set_aside(
      const at::Tensor& texts,
      const at::Tensor& scores,
      const at::Tensor& ended);
  /// Whether one of those that go on may still be better, [texts, 1].
  at::Tensor may_improve() const;

  GenerateOptions options_;
  int64_t texts_;
  int64_t given_; ///< tokens that the texts began with
  at::Tensor rows_;
  at::Tensor padding_;
  at::Tensor scores_; ///< of rows_, [texts, beams]
  at::Tensor best_; ///< [texts, beams, given + max_new_tokens], padded
  at::Tensor best_lengths_; ///< their new tokens, [texts, beams] int64
  at::Tensor best_scores_; ///< [texts, beams]
  at::Tensor is_ended_; ///< of best_, [texts, beams] bool
  at::Tensor can_improve_; ///< [texts, 1] bool
  bool is_done_ = false;
};

} // namespace tessera::zoo
