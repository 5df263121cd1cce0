// SPDX-License-Identifier: Apache-2.0
#pragma once
// `normed_rows()` and `norm_gradients()` are the norms of mixed_norm.h composed
// of LibTorch's operators. Differentiable. Internal.

#include "tessera/runtime/kernels/norm_arguments.h"

#include <ATen/core/Tensor.h>

namespace tessera::runtime {

/// A tensor as [samples, groups, parameters of a group, spatial].
at::Tensor norm_rows(const at::Tensor& x, const NormLayout& layout);

struct NormedRows {
  at::Tensor mean; ///< [samples, groups, 1, 1]; undefined if not centered
  at::Tensor rstd; ///< as mean
  at::Tensor normed; ///< (x - mean) rstd, float32, as norm_rows()
};

/// @param rows as norm_rows() gives them.
NormedRows normed_rows(const at::Tensor& rows, double eps, bool centered);

struct NormGradients {
  at::Tensor x; ///< as norm_rows(), float32
  at::Tensor weight; ///< [groups, parameters of a group], as that of the bias
  at::Tensor bias;
};

/// @param gradient with respect to the result, as norm_rows() gives it.
/// @param weight [parameters], undefined for ones.
NormGradients norm_gradients(
    const at::Tensor& gradient,
    const NormedRows& saved,
    const at::Tensor& weight,
    bool centered);

} // namespace tessera::runtime
