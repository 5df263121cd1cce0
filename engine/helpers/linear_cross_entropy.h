// SPDX-License-Identifier: Apache-2.0
#pragma once
// `linear_cross_entropy()` computes the head of a language model and its loss
// without storing all logits.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct LinearCrossEntropyOptions {
  enum class Reduction { kMean, kSum };

  Reduction reduction = Reduction::kMean;
  /// Targets of this value do not contribute.
  int64_t ignore_index = -100;
  /// Share of each target that is spread over all classes, in [0, 1).
  double label_smoothing = 0;
  /// Coefficient of the squared logarithm of the softmax denominator, which
  /// keeps logits small (arXiv:2204.02311).
  double z_loss = 0;
  /// [classes], floating point, without gradient: factors of the losses of
  /// classes, z_loss included; the mean is then over the weights of the
  /// targets. Undefined: 1.
  at::Tensor class_weights;
  /// Rows whose logits exist at the same time; 0: 256 on the CPU, elsewhere
  /// equal parts of at most 1 GiB of logits (256 MiB with `fused` off).
  int64_t chunk_rows = 0;
};

/// cross_entropy(hidden @ weight.T + bias, targets), chunk by chunk: instead of
/// 2 or 3 tensors of rows x classes, one of chunk_rows x classes exists at a
/// time, in the dtype of hidden; logits become their gradient in place
/// ([Note: softmax loss]; with `fused` off and for float64 by LibTorch's
/// operators). Gradients are computed together with the loss, so that nothing
/// is computed twice, and scaled in backward. The mean is over the targets that
/// are not ignored; as in LibTorch it is NaN if there are none. `weight` and
/// `bias` may be sharded by an Engine, frozen, or shared with an embedding.
///
/// `weight` may be divided by a tensor plan, as kColumn or kVocab: each rank
/// has the logits of its classes and sends four numbers a row, in an all-gather
/// for each chunk; backward sums the gradient of hidden. Collective then;
/// targets are equal on all ranks, and the loss is. Kernels for it are those of
/// the CPU; elsewhere LibTorch's operators compute it.
///
/// @param hidden [..., width], floating point.
/// @param weight [classes, width], of hidden's dtype.
/// @param bias [classes], whole or divided as weight, of hidden's dtype;
///   undefined for none.
/// @param targets int64, of hidden's shape without the last dimension.
/// @return scalar; float32 if hidden is less precise than that. So are the sums
///   over chunks: gradients of weight and bias are rounded once.
/// @throws tessera::Error on other shapes or dtypes.
///
/// Deterministic. Has no second derivative.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    const LinearCrossEntropyOptions& options = {});

/// The same without a bias.
at::Tensor linear_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const LinearCrossEntropyOptions& options = {});

} // namespace tessera
