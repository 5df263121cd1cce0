// SPDX-License-Identifier: Apache-2.0
#pragma once
// `softmax_part_sums()` and `softmax_part_gradient_()` are the two halves of
// [Note: softmax loss] for logits of which each rank has some of the classes:
// what lies between them is communicated.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::runtime {

/// Targets that are classes of another part, and rows that are ignored.
inline constexpr int64_t kClassElsewhere = -1;
inline constexpr int64_t kIgnoredRow = -2;

/// Logits of some of the classes.
struct SoftmaxPart {
  /// [rows, columns], rows without gaps; the first `classes` columns.
  at::Tensor logits;
  at::Tensor targets; ///< [rows] int64: a class of this part or as above
  at::Tensor class_weights; ///< [classes], or undefined: ones
  int64_t classes = 0;
};

/// Not differentiable, as the next. Deterministic.
/// @param sums [rows, 4], written: the largest logit, a finite number; the sum
///   of exp(logit - largest); with `weighted` the sum of the logits times
///   class weights, else 0; the target's logit, 0 if it is elsewhere. Float32
///   for `fused`, which is for logits on the CPU and dtypes of
///   takes_softmax_loss(); otherwise LibTorch's operators compute it.
void softmax_part_sums(
    const SoftmaxPart& part,
    const at::Tensor& sums,
    bool weighted,
    bool fused);

/// Logits become exp(logit - f_0) f_1 - f_2 w_j, less by f_3 where the
/// target is of this part; 0 in rows that are ignored and in further columns.
/// @param factors [rows, 4] of the dtype of `sums`.
void softmax_part_gradient_(
    const SoftmaxPart& part,
    const at::Tensor& factors,
    bool fused);

} // namespace tessera::runtime
