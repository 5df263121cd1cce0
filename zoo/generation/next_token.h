// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NextToken` chooses the next token of each sequence, greedily or by sampling.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace tessera::zoo {

/// Draws from the scores after apply_sampling_rules(), or takes the most likely
/// token. Runs on the CPU in float32; ranks with the same scores choose the
/// same tokens.
class NextToken {
 public:
  explicit NextToken(const GenerateOptions& options);

  /// @param scores [B, vocabulary] float32 on the CPU: logits after
  ///     apply_score_rules(). Modified.
  /// @return [B] int64.
  at::Tensor choose(at::Tensor scores);

 private:
  GenerateOptions options_;
  at::Generator generator_;
};

} // namespace tessera::zoo
