// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NextToken` chooses the next token of each sequence, greedily or by sampling.

#include "tessera/zoo/generation/generate_options.h"
#include "tessera/zoo/generation/row_draws.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::zoo {

/// Draws from the scores after apply_sampling_rules(), or takes the most likely
/// token. Runs on the CPU in float32; ranks with the same scores choose the
/// same tokens, and a row the same beside any others.
class NextToken {
 public:
  /// @param rows of each prompt, adjacent.
  NextToken(const GenerateOptions& options, int64_t prompts, int64_t rows = 1);

  /// @param scores [B, vocabulary] float32 on the CPU: logits after
  ///     apply_score_rules(). Modified.
  /// @param written the number of new tokens before these.
  /// @return [B] int64.
  at::Tensor choose(at::Tensor scores, int64_t written) const;

 private:
  GenerateOptions options_;
  RowDraws draws_;
};

} // namespace tessera::zoo
