// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorStatistics` holds range, mean, spread and norm of a tensor; it is
// mergeable, so that statistics of parts on several ranks give those of the
// whole.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::sharding {

/// Statistics of the elements that were added, in float64. If any of them is
/// NaN, so are all members but count.
struct TensorStatistics {
  int64_t count = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  double squares = 0; ///< sum of squared distances from the mean

  /// Adds the elements of `part`, each multiplied by `factor`. Blocks.
  void add(const at::Tensor& part, double factor = 1);
  void merge(const TensorStatistics& other);

  /// sqrt(squares / (count - 1)); NaN for fewer than two elements.
  double std() const;
  /// The 2-norm.
  double norm() const;
};

class Pager;

/// Merges the statistics at each position over the ranks. Collective; the
/// number of positions must be equal on all ranks.
/// @param ranks per position, those to merge over; empty: all.
void merge_over_ranks(
    Pager& pager,
    std::vector<TensorStatistics>& statistics,
    const std::vector<std::vector<int>>& ranks = {});

/// The same over the tensor-parallel ranks, of parts of the layers.
void merge_over_tensor_ranks(
    Pager& pager,
    std::vector<TensorStatistics>& statistics);

} // namespace tessera::sharding
