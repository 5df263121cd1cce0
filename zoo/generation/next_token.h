// SPDX-License-Identifier: Apache-2.0
#pragma once
// Choosing a text's next token.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace tessera::zoo {

/// Chooses as transformers' generate() does, in its order: temperature, the
/// likeliest tokens, and a draw; or the likeliest one. On the CPU, in float32;
/// ranks that have the same scores choose the same tokens.
class NextToken {
 public:
  explicit NextToken(const GenerateOptions& options);

  /// @param scores [B, vocabulary] float32 on the CPU, logits behind
  ///     apply_score_rules(); changed.
  /// @return [B] int64.
  at::Tensor choose(at::Tensor scores);

 private:
  void keep_likeliest(at::Tensor& scores) const;

  GenerateOptions options_;
  at::Generator generator_;
};

} // namespace tessera::zoo
