// SPDX-License-Identifier: Apache-2.0
#pragma once
// Choosing a text's next token.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::zoo {

/// Chooses as transformers' generate() does, in its order: penalties, tokens
/// that must not come, temperature, the likeliest ones, and a draw. On the CPU,
/// in float32; ranks that have the same logits choose the same tokens.
class NextToken {
 public:
  /// @throws tessera::Error on options that are out of range.
  /// @param padding [B] int64: tokens before each text that are none, and not
  ///     penalised; undefined for none.
  explicit NextToken(const GenerateOptions& options, at::Tensor padding = {});

  /// @param logits [B, vocabulary] of the next token.
  /// @param tokens [B, S] int64 on the CPU: the texts so far.
  /// @param written how many of them are new.
  /// @return [B] int64.
  at::Tensor choose(
      const at::Tensor& logits,
      const at::Tensor& tokens,
      int64_t written);

 private:
  void penalise(at::Tensor& scores, const at::Tensor& tokens) const;
  void forbid_repeats(at::Tensor& scores, const at::Tensor& tokens) const;
  void keep_likeliest(at::Tensor& scores) const;

  GenerateOptions options_;
  at::Tensor padding_;
  at::Generator generator_;
};

} // namespace tessera::zoo
