// SPDX-License-Identifier: Apache-2.0
#pragma once
// `route_tokens()` selects the experts of each token and their weights.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::sharding {

struct RouterOptions {
  int64_t experts_per_token = 1;
  /// Normalizes the weights of a token's experts so that they sum to 1.
  bool normalise = false;
  /// Limits the number of choices that an expert accepts to its even share of
  /// the call's choices times this factor (arXiv:2006.16668, arXiv:2101.03961);
  /// see expert_capacity(). If unset, no choice is dropped.
  std::optional<double> capacity_factor;
};

/// @throws tessera::Error naming the option, its value and the values allowed.
void check(const RouterOptions& options, int64_t experts);

struct ExpertRouting {
  at::Tensor experts; ///< int64 [tokens, k], a token's best first
  at::Tensor weights; ///< [tokens, k], float32 (float64 for float64 logits)
  /// bool [tokens, k], false where an expert was full; undefined if no choice
  /// was dropped.
  at::Tensor kept;
};

/// The number of times that each of 0 .. `experts` - 1 is among `chosen`, int64
/// of any shape: int64 [experts]. Does not synchronize, unlike bincount().
at::Tensor count_choices(const at::Tensor& chosen, int64_t experts);

/// Returns how many choices of these tokens an expert accepts: ceil(factor * k
/// * tokens / experts), at least 1.
/// @param options must have a capacity_factor.
int64_t expert_capacity(
    int64_t tokens,
    int64_t experts,
    const RouterOptions& options);

/// Selects the k largest of softmax(logits); of equal values, the first. Full
/// experts accept first choices before second choices, and those of earlier
/// tokens before those of later tokens, so that the result depends only on the
/// logits of this call. Differentiable through the weights.
/// @param logits [tokens, experts] of this rank's tokens, from whose number the
///   capacity follows.
/// @throws tessera::Error as check().
ExpertRouting route_tokens(
    const at::Tensor& logits,
    const RouterOptions& options);

} // namespace tessera::sharding
