// SPDX-License-Identifier: Apache-2.0
#pragma once
// apply_score_rules() lowers or forbids the scores of next tokens that repeat
// the sequence or end it too early; apply_sampling_rules() those that are too
// unlikely to be drawn.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace tessera::zoo {

/// The score of a token that must not come next.
inline constexpr float kImpossible = -std::numeric_limits<float>::infinity();

/// Modifies scores as transformers' generate() does, in its order: sequence
/// biases, repetition penalty, repeated n-grams, bad words, end tokens before
/// min_new_tokens, forced first and last tokens, suppressed tokens.
/// @param options as GenerateOptions::after().
/// @param scores [B, vocabulary] float32 on the CPU, logits or log-softmax;
///     modified in place.
/// @param tokens [B, S] int64 on the CPU: the sequences so far.
/// @param written how many of them are new.
/// @param padding [B] int64: the number of padding tokens before each sequence,
///     which are not penalized; undefined for none.
/// @throws tessera::Error if a token of the options is outside the vocabulary.
void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const at::Tensor& tokens,
    int64_t written,
    const at::Tensor& padding);

/// Modifies scores as transformers' generate() does before it samples, in its
/// order: temperature, top-k, top-p, min-p. Of each row, the most likely token
/// is kept; with beams one more than there are end tokens, and at least two, so
/// that a beam can go on.
/// @param scores [B, vocabulary] float32 on the CPU, after apply_score_rules();
///     modified in place.
void apply_sampling_rules(const GenerateOptions& options, at::Tensor& scores);

} // namespace tessera::zoo
