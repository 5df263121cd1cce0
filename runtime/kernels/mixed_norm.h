// SPDX-License-Identifier: Apache-2.0
#pragma once
// LayerNorm, RMSNorm and GroupNorm of bfloat16 and float16 activations with
// float32 parameters and statistics, without a float32 copy of the activations.
//
// [Note: mixed norms] LibTorch's LayerNorm takes such arguments on the CPU
// only, where it adds up the parameters' gradients in 16 bits; its GroupNorm on
// the CPU only; its RMSNorm computes on float32 copies, or not at all. Hence an
// operator of our own, tessera::mixed_norm, with kernels for the CPU and for
// CUDA (norm_cuda.cu). It is an operator, not a function, so that dispatch keys
// see its arguments: those of paged parameters when backward uses a weight, and
// those of other devices.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace tessera::runtime {

/// (x - mean) / sqrt(variance + eps) weight + bias (arXiv:1607.06450), over the
/// last dimensions. Differentiable, twice too; saves x as it is and two float32
/// numbers a row. Deterministic. Runs on the current stream; does not
/// synchronize.
/// @param x bfloat16 or float16, [..., *shape].
/// @param weight, bias [*shape] float32, on x's device, or undefined; their
///   gradients are float32.
/// @return in x's dtype and shape.
/// @throws tessera::Error on other dtypes, shapes or devices.
at::Tensor mixed_layer_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps);

/// x / sqrt(mean of squares + eps) weight (arXiv:1910.07467); otherwise as
/// mixed_layer_norm(), with one number a row.
at::Tensor mixed_rms_norm(
    const at::Tensor& x,
    at::IntArrayRef shape,
    const at::Tensor& weight,
    double eps);

/// As mixed_layer_norm(), over `groups` groups of channels each
/// (arXiv:1803.08494); two numbers are saved for each.
/// @param x [samples, channels, ...], not empty.
/// @param weight, bias [channels] float32, on x's device, or undefined.
at::Tensor mixed_group_norm(
    const at::Tensor& x,
    int64_t groups,
    const at::Tensor& weight,
    const at::Tensor& bias,
    double eps);

} // namespace tessera::runtime
