// SPDX-License-Identifier: Apache-2.0
#pragma once
// `common_runs()` computes which elements two parts of a parameter have in
// common and where they lie in each. Pure arithmetic; all numbers count
// elements.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::engine {

/// Indices [begin, end) of one dimension and all indices of the others. Stored
/// in row-major order, as a tensor of its own.
struct DimPart {
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const DimPart&) const = default;
};

/// Consecutive elements of a part in the order in which it is stored.
struct PartStretch {
  std::optional<DimPart> part; ///< nothing: all of it, in memory order
  int64_t offset = 0;
  int64_t numel = 0;
};

/// Runs of equal length. Run i begins at a + i * a_pitch in one stretch and at
/// b + i * b_pitch in the other, counted from the first element of the stretch.
struct CommonRuns {
  int64_t runs = 0;
  int64_t length = 0;
  int64_t a = 0;
  int64_t a_pitch = 0;
  int64_t b = 0;
  int64_t b_pitch = 0;
};

/// The strides of a contiguous tensor.
std::vector<int64_t> row_major_strides(std::span<const int64_t> sizes);

/// The number of elements in a part of a tensor of `sizes`.
int64_t numel_of(std::span<const int64_t> sizes, const DimPart& part);

/// The common elements of two stretches of a parameter of `sizes`: a few blocks
/// of runs; if the parts divide different dimensions, both after the first, a
/// few per row.
std::vector<CommonRuns> common_runs(
    std::span<const int64_t> sizes,
    const PartStretch& a,
    const PartStretch& b);

} // namespace tessera::engine
