// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scores of the next token, made less or impossible by what a text has.

#include "tessera/zoo/generation/generate_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

namespace tessera::zoo {

/// The score of a token that must not come next.
inline constexpr float kImpossible = -std::numeric_limits<float>::infinity();

/// Changes scores as transformers' generate() does, in its order: a penalty of
/// tokens that were there, tokens that would repeat a row of them, and ends
/// that come too early.
/// @param scores [B, vocabulary] float32 on the CPU, logits or their
///     logarithmic softmax; changed in place.
/// @param tokens [B, S] int64 on the CPU: the texts so far.
/// @param written how many of them are new.
/// @param padding [B] int64: tokens before each text that are none, and not
///     penalised; undefined for none.
/// @throws tessera::Error on an eos_token_id outside of the vocabulary.
void apply_score_rules(
    const GenerateOptions& options,
    at::Tensor& scores,
    const at::Tensor& tokens,
    int64_t written,
    const at::Tensor& padding);

} // namespace tessera::zoo
