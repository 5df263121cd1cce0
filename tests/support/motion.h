// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trained weights are compared by how far training has moved them.

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>

namespace tessera::tests {

/// Root of the mean square of a - b.
inline double distance_of(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble))
      .square()
      .mean()
      .sqrt()
      .item<double>();
}

/// [Note: tolerances by motion] A few steps move a weight by little of its
/// size, so that a tolerance in proportion to the weight would let an untrained
/// one pass. Weights are compared within a fraction of the distance that they
/// were to move: an update that is wrong by that fraction fails. Two runs that
/// differ in the last bit of their updates round their weights differently too,
/// by one unit in the last place in each of a few steps: 4 of them are allowed
/// for, where anything moves at all.
///
/// Expects that weights which were `start` have become `wanted`.
/// @param fraction of the motion; 0: equal to the bit. What was not to move is
///   equal to the bit in any case.
/// @param least_motion what the fraction is of where less was to move: there
///   the gradient is nothing but roundings (that of the bias of an attention
///   key, which changes nothing).
inline void expect_close_by_motion(
    const at::Tensor& start,
    const at::Tensor& wanted,
    const at::Tensor& got,
    double fraction,
    const std::string& label,
    double least_motion = 0) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << label;
  ASSERT_EQ(got.scalar_type(), wanted.scalar_type()) << label;
  ASSERT_EQ(start.sizes(), wanted.sizes()) << label;
  if (wanted.numel() == 0 || at::equal(got.detach(), wanted.detach())) {
    return;
  }
  const double off = distance_of(got, wanted);
  const double moved = distance_of(wanted, start);
  // Masters are float32 at least.
  const double unit = wanted.scalar_type() == at::kDouble ? 0x1p-52 : 0x1p-23;
  const double allowed =
      fraction > 0 && moved > 0
          ? fraction * std::max(moved, least_motion) +
                4 * unit * distance_of(wanted, at::zeros_like(wanted))
          : 0;
  // Written so that NaN fails, and -0 for 0.
  EXPECT_TRUE(off <= allowed && off > 0)
      << label << " is off by " << off << ", " << off / moved
      << " of the motion, " << moved;
}

} // namespace tessera::tests
