// SPDX-License-Identifier: Apache-2.0
#pragma once
// apply_score_rules() lowers or forbids the scores of next tokens that repeat
// the sequence or end it too early; apply_sampling_rules() those that are too
// unlikely to be drawn.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <span>

namespace tessera::zoo {

/// The score of a token that must not come next.
inline constexpr float kImpossible = -std::numeric_limits<float>::infinity();

/// The sequences so far, each without the padding before it.
class RowTexts {
 public:
  /// @param tokens [B, S] int64 on the CPU.
  /// @param padding [B] int64: the number of padding tokens before each
  ///     sequence; undefined for none.
  RowTexts(const at::Tensor& tokens, const at::Tensor& padding);

  int64_t rows() const {
    return tokens_.size(0);
  }
  std::span<const int64_t> operator[](int64_t row) const;

 private:
  at::Tensor tokens_; ///< contiguous
  at::Tensor padding_; ///< likewise, or undefined
};

/// Modifies scores as transformers' generate() does to a sequence without
/// padding, in its order: sequence biases, repetition penalty, repeated
/// n-grams, bad words, end tokens before min_new_tokens, forced first and last
/// tokens, suppressed tokens.
/// @param options as GenerateOptions::after().
/// @param scores [B, vocabulary] float32 on the CPU, logits or log-softmax;
///     modified in place.
/// @param texts of the rows.
/// @param written how many of the tokens of each are new.
/// @throws tessera::Error if a token of the options is outside the vocabulary.
void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const RowTexts& texts,
    int64_t written);

/// Modifies scores as transformers' generate() does before it samples, in its
/// order: temperature, top-k, top-p, min-p. Of each row, the most likely token
/// is kept; with beams one more than there are end tokens, and at least two, so
/// that a beam can go on.
/// @param scores [B, vocabulary] float32 on the CPU, after apply_score_rules();
///     modified in place.
void apply_sampling_rules(const GenerateOptions& options, at::Tensor& scores);

} // namespace tessera::zoo
