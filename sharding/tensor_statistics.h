// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a table says of a tensor: range, mean, spread, norm; mergeable, so that
// parts on several ranks give the numbers of the whole.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// Of the elements that were added, in float64. NaN in them makes NaN of all
/// but count.
struct TensorStatistics {
  int64_t count = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  double squares = 0; ///< sum of squared distances from the mean

  /// Adds the elements of `part`, each multiplied with `factor`. Blocks.
  void add(const at::Tensor& part, double factor = 1);
  void merge(const TensorStatistics& other);

  /// sqrt(squares / (count - 1)); NaN for fewer than two elements.
  double std() const;
  /// The 2-norm.
  double norm() const;
};

class Pager;

/// Merges the statistics at each position over the ranks. Collective; all ranks
/// give as many.
void merge_over_ranks(Pager& pager, std::vector<TensorStatistics>& statistics);

} // namespace tessera
