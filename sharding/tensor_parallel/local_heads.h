// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LocalHeads` is what a rank needs for attention of its own query heads.

#include "tessera/sharding/tensor_parallel/dtensor_impl.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace tessera::sharding {

/// Tensors of one attention call, [B, heads, S, n], of which a rank has some of
/// the query heads: DTensors that are divided by heads, and tensors that every
/// rank has whole. Ordinary tensors stay as they are. Not collective, but its
/// backward is.
struct LocalHeads {
  /// @param key, value divided as the query, or whole: all heads on every rank,
  ///   where there are fewer than ranks.
  /// @param mask broadcast to [B, heads, Q, K], or undefined.
  LocalHeads(
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const at::Tensor& mask);

  /// Makes the result of all heads of that of this rank's, [B, own heads, Q,
  /// n].
  at::Tensor full(const at::Tensor& result) const;

  at::Tensor query;
  /// Heads that belong to the rank's query heads; repeated for each of these
  /// if they belong to them in different numbers.
  at::Tensor key;
  at::Tensor value;
  at::Tensor mask;
  Layout layout; ///< of the query
};

} // namespace tessera::sharding
