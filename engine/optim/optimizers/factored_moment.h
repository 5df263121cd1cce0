// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FactoredShape` computes with the second moment of a matrix kept as its row
// and column means, while each rank has a stretch of the matrix.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tessera::engine {

/// A stack of matrices in the order of memory. Its factors are one flat tensor:
/// all rows ([matrices, rows]), then all columns ([matrices, columns]).
struct FactoredShape {
  int64_t matrices = 1;
  int64_t rows = 1;
  int64_t columns = 1;

  /// For a parameter with at least two dimensions, more than one element in
  /// each of the last two, and no holes in memory; nothing for others.
  static std::optional<FactoredShape> of(const at::Tensor& parameter);

  int64_t state_numel() const {
    return matrices * (rows + columns);
  }

  /// Adds the row and column sums of a stretch to `sums`.
  /// @param values [n], elements [offset, offset + n) of the stack.
  /// @param sums [state_numel] float64, on any device.
  void add_sums(
      const at::Tensor& values,
      int64_t offset,
      const at::Tensor& sums) const;

  /// Converts the sums over a whole stack to means.
  at::Tensor means_of(const at::Tensor& sums) const;

  /// Divides a stretch in place by the square root of the rank-one moment that
  /// the factors represent: row mean * column mean / mean of the row means.
  void divide_by_root(
      const at::Tensor& values,
      int64_t offset,
      const at::Tensor& factors) const;
};

} // namespace tessera::engine
