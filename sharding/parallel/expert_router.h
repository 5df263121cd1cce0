// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which experts a token goes to, and how much each of them counts.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera {

struct RouterOptions {
  int64_t experts_per_token = 1;
  /// The weights of a token's experts are made to add up to 1.
  bool normalise = false;
  /// An expert takes no more than its share of the call's choices times this
  /// (arXiv:2006.16668, arXiv:2101.03961); see expert_capacity(). Without it no
  /// choice is dropped, however many tokens an expert gets.
  std::optional<double> capacity_factor;
};

/// @throws tessera::Error naming the option, its value and what it may be.
void check(const RouterOptions& options, int64_t experts);

struct ExpertRouting {
  at::Tensor experts; ///< int64 [tokens, k], a token's best first
  at::Tensor weights; ///< [tokens, k], float32, or float64 as the logits
  /// bool [tokens, k], false where an expert was full; undefined: nowhere.
  at::Tensor kept;
};

/// ceil(factor * k * tokens / experts), at least 1: choices that an expert
/// takes of these tokens.
/// @param options with a capacity_factor.
int64_t expert_capacity(
    int64_t tokens,
    int64_t experts,
    const RouterOptions& options);

/// The k greatest of softmax(logits), of equal ones the first. Full experts
/// take first choices before second ones, and those of earlier tokens before
/// those of later ones: what is kept depends on the call's logits alone. The
/// gradient goes through the weights.
/// @param logits [tokens, experts]: those of this rank, which a capacity is
///     reckoned from.
/// @throws tessera::Error as check().
ExpertRouting route_tokens(
    const at::Tensor& logits,
    const RouterOptions& options);

} // namespace tessera
