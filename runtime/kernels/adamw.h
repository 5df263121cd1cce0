// SPDX-License-Identifier: Apache-2.0
#pragma once
// `adamw_()` is the AdamW update of a flat shard, on CPU and CUDA.

#include "tessera/runtime/kernels/adamw_shard.h"

#include <ATen/core/Tensor.h>

namespace tessera::runtime {

/// One AdamW step over a flat shard, in place (arXiv:1711.05101, Alg. 2), with
/// the operations, order and rounding of torch::optim::AdamW on the CPU, except
/// for the square root, which is correctly rounded (see [Note: the bits of
/// AdamW] in adamw_kernel.h):
///
///   g = grad * grad_scale
///   exp_avg    = beta1 * exp_avg    + (1 - beta1) * g
///   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g * g
///   denom = sqrt(exp_avg_sq) / sqrt(1 - beta2^step) + eps
///   master = (1 - lr * weight_decay) * master
///            - lr / (1 - beta1^step) * exp_avg / denom
///
/// @param master [numel] float32 or float64, contiguous; updated.
/// @param grad [numel] of master's dtype, bfloat16 or float16, contiguous;
///   already averaged over the data-parallel ranks, or averaged by grad_scale.
/// @param exp_avg [numel] of master's dtype or bfloat16, contiguous; updated.
/// @param exp_avg_sq [numel] of exp_avg's dtype, contiguous; updated.
/// @param low_precision [numel] bfloat16 or float16, contiguous, or undefined;
///   receives the new master, rounded according to step.rounding.
/// @return as adamw_runs_() in update_runs.h.
/// @throws tessera::Error on a mismatch of shape, dtype, device or layout, on
///   hyperparameters out of range, and for CUDA tensors when the CUDA backend
///   is not loaded.
///
/// The tensors must not overlap. Autograd does not record the update. Each
/// element is computed independently, so the result depends neither on the
/// number of threads nor on where a shard begins. On CPU it blocks and runs on
/// the threads of update_pool(); on CUDA it runs on the current stream and does
/// not synchronize.
bool adamw_(
    const at::Tensor& master,
    const at::Tensor& grad,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& low_precision = {});

} // namespace tessera::runtime
