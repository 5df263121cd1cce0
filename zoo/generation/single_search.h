// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SingleSearch` extends each sequence independently, greedily or by sampling.

#include "tessera/zoo/generation/next_token.h"
#include "tessera/zoo/generation/text_search.h"

namespace tessera::zoo {

/// Every row gets its most likely next token, or a sampled one, until all have
/// ended or reached max_new_tokens.
class SingleSearch : public TextSearch {
 public:
  /// @param rows [prompts * num_return_sequences, S] int64: the prompts, each
  ///     repeated in a row.
  /// @param padding see RowTexts.
  SingleSearch(
      const GenerateOptions& options,
      const at::Tensor& rows,
      const at::Tensor& padding,
      EndsSequence ends = {});

  TokenProposal propose(const at::Tensor& logits) override;
  TokenProposal blank() const override;
  at::Tensor advance(const TokenProposal& proposal) override;
  const at::Tensor& rows() const override {
    return rows_;
  }
  bool is_done() const override;
  at::Tensor result() const override {
    return rows_;
  }

 private:
  int64_t written() const {
    return rows_.size(1) - given_;
  }

  GenerateOptions options_;
  EndsSequence ends_;
  NextToken next_;
  at::Tensor rows_;
  at::Tensor padding_;
  int64_t given_; ///< prompt length in tokens
  at::Tensor ended_; ///< [B] bool
};

} // namespace tessera::zoo
