// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which elements two parts of one parameter have in common, and where they lie
// in each. Pure arithmetic; all numbers count elements.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera {

/// Indices [begin, end) of one dimension, and all of the others. It is stored
/// row by row, as a tensor of its own.
struct DimPart {
  int64_t dim = 0;
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const DimPart&) const = default;
};

/// Consecutive elements of a part as it is stored.
struct PartStretch {
  std::optional<DimPart> part; ///< nothing: the whole, in its own order
  int64_t offset = 0;
  int64_t numel = 0;
};

/// Runs of equal length. Run i begins at a + i * a_pitch in one stretch and at
/// b + i * b_pitch in the other, counted from the stretch's first element.
struct CommonRuns {
  int64_t runs = 0;
  int64_t length = 0;
  int64_t a = 0;
  int64_t a_pitch = 0;
  int64_t b = 0;
  int64_t b_pitch = 0;
};

/// Of a tensor whose rows lie one after the other.
std::vector<int64_t> row_major_strides(std::span<const int64_t> sizes);

/// Elements of a part of a tensor of `sizes`.
int64_t numel_of(std::span<const int64_t> sizes, const DimPart& part);

/// What two stretches of a parameter of `sizes` have in common: at most a few
/// blocks of runs, unless the parts are of different dimensions behind the
/// first, where it is a few for every row.
std::vector<CommonRuns> common_runs(
    std::span<const int64_t> sizes,
    const PartStretch& a,
    const PartStretch& b);

} // namespace tessera
