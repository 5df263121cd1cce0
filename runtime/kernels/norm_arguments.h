// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NormLayout` and what else the kernels of [Note: mixed norms] for the CPU and
// for CUDA share.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace tessera::runtime {

/// The rows that are normalized, in a contiguous tensor, and where their
/// parameters are: row r has those of group r % groups, and `spatial`
/// neighbouring elements share one.
struct NormLayout {
  int64_t features; ///< elements of a row
  int64_t groups = 1;
  int64_t spatial = 1;

  /// All elements of the weight.
  int64_t parameters() const {
    return groups * (features / spatial);
  }
};

using NormResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// tessera::mixed_norm.
/// @return y; mean [rows], empty if not centered; rstd [rows].
using NormOperator = NormResults(
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    bool centered);

/// tessera::mixed_norm_backward.
/// @return the gradients of x, weight and bias that are wanted.
using NormBackwardOperator = NormResults(
    const at::Tensor& gradient,
    const at::Tensor& x,
    int64_t features,
    int64_t groups,
    int64_t spatial,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    bool centered,
    std::array<bool, 3> wanted);

/// Contiguous, or undefined for None.
inline at::Tensor contiguous_or_none(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor->contiguous() : at::Tensor();
}

/// Null for an undefined tensor, as the next.
inline const float* float_data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}
inline float* mutable_float_data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

} // namespace tessera::runtime
