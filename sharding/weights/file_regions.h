// SPDX-License-Identifier: Apache-2.0
#pragma once
// `transposed()`, `narrowed()`, `every()`, `concatenated()` and `unflattened()`
// make tensors of others' pieces; nothing is read.

#include "tessera/sharding/weights/weight_entry.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::sharding {

/// The transpose of a matrix; any other tensor as it is.
WeightEntry transposed(WeightEntry entry);

/// Indices [begin, end) of a dimension.
/// @throws tessera::Error if the tensor does not have them.
WeightEntry narrowed(
    WeightEntry entry,
    int64_t dim,
    int64_t begin,
    int64_t end);

/// Every `step`th index of a dimension, beginning with `first`.
/// @throws tessera::Error unless 0 <= first < step and the tensor has the
///   dimension.
WeightEntry every(WeightEntry entry, int64_t dim, int64_t first, int64_t step);

/// One behind the other along a dimension.
/// @throws tessera::Error naming the tensors if their other sizes or their
///   dtypes differ, or there are none.
WeightEntry concatenated(
    const std::string& name,
    std::span<const WeightEntry> parts,
    int64_t dim);

/// Some elements of a flat tensor.
struct WeightStretch {
  const WeightEntry* flat = nullptr; ///< of one dimension, in one piece
  int64_t offset = 0; ///< of the first element in `flat`
  int64_t numel = 0;
};

/// A tensor whose elements, row by row, are in stretches one behind the other.
/// @throws tessera::Error if a stretch is not in its tensor, or together they
///   are not as long as the tensor.
WeightEntry unflattened(
    const std::string& name,
    const std::vector<int64_t>& shape,
    std::span<const WeightStretch> stretches);

} // namespace tessera::sharding
