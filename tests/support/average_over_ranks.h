// SPDX-License-Identifier: Apache-2.0
#pragma once
// The average of gradients over ranks, on one rank.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <vector>

namespace tessera::tests {

/// Average of what the ranks have as the gradient of one parameter. The order
/// of the sum is that of the ranks, those of one copy of the model first, and
/// the division comes last (of float16, first): another order would round
/// otherwise, and AdamW makes a whole step of a rounding error where a gradient
/// is nearly zero.
/// @param gradients of each rank; undefined ones count as zero.
/// @param shard_ranks the ranks that divide one copy; 0: all.
/// @return undefined when all are.
inline at::Tensor average_over_ranks(
    std::vector<at::Tensor> gradients,
    size_t shard_ranks = 0) {
  const c10::NoGradGuard no_grad;
  const size_t ranks = gradients.size();
  const size_t per_copy = shard_ranks == 0 ? ranks : shard_ranks;
  at::Tensor some;
  for (const at::Tensor& gradient : gradients) {
    some = gradient.defined() ? gradient : some;
  }
  if (!some.defined()) {
    return {};
  }
  const bool divides_first = some.scalar_type() == at::kHalf;
  const bool low_precision =
      divides_first || some.scalar_type() == at::kBFloat16;
  for (at::Tensor& gradient : gradients) {
    gradient = gradient.defined() ? gradient.detach() : at::zeros_like(some);
    if (divides_first && ranks > 1) {
      gradient = gradient / static_cast<double>(ranks);
    }
  }
  const auto sum = [&](size_t begin, size_t end, size_t stride) {
    at::Tensor total = low_precision ? gradients[begin].to(at::kFloat)
                                     : gradients[begin].clone();
    for (size_t r = begin + stride; r < end; r += stride) {
      total.add_(gradients[r]);
    }
    return total.to(some.scalar_type());
  };
  for (size_t copy = 0; copy < ranks; copy += per_copy) {
    gradients[copy] = sum(copy, copy + per_copy, 1);
  }
  at::Tensor total = sum(0, ranks, per_copy);
  if (!divides_first && ranks > 1) {
    total.div_(static_cast<double>(ranks));
  }
  return total;
}

/// Euclidean length of all gradients together, in float64.
inline double norm_of(const std::vector<at::Tensor>& gradients) {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined()) {
      squares += gradient.to(at::kDouble).square().sum().item<double>();
    }
  }
  return std::sqrt(squares);
}

/// Multiplies the gradients so that their norm is at most `max_norm`.
/// @return what it was.
inline double clip_plain_gradients(
    const std::vector<at::Tensor>& gradients,
    double max_norm) {
  const c10::NoGradGuard no_grad;
  const double norm = norm_of(gradients);
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1) {
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined()) {
        gradient.mul_(factor);
      }
    }
  }
  return norm;
}

} // namespace tessera::tests
