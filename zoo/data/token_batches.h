// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenBatches` cuts a file of tokens into sequences of equal length.

#include "tessera/zoo/data/data_set.h"
#include "tessera/zoo/data/token_file.h"

#include <c10/core/Device.h>

namespace tessera::zoo {

/// "loss 1.2345 over 960 tokens (perplexity 3.44)".
TaskScore token_score(const Score& score);

/// Consecutive sequences of `length` tokens are the examples; tokens that do
/// not fill one are left out. The first token of each is not predicted.
class TokenBatches : public DataSet {
 public:
  TokenBatches(TokenFile tokens, int64_t length, c10::Device device);

  size_t size() const override;
  std::string text() const override;
  ModelInput make(
      const std::vector<size_t>& examples,
      int64_t epoch,
      bool loss_only) const override;
  int64_t left_out_tokens() const override {
    return tokens_.size() % length_;
  }
  bool has_equal_labels() const override {
    return true;
  }
  bool measures_metric() const override {
    return false;
  }
  TaskScore report(const Score& score) const override;

 private:
  TokenFile tokens_;
  int64_t length_;
  c10::Device device_;
};

} // namespace tessera::zoo
