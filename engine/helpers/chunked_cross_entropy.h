// SPDX-License-Identifier: Apache-2.0
#pragma once
// `chunked_cross_entropy()` computes the head of a language model and its loss
// without storing all logits.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct ChunkedCrossEntropyOptions {
  enum class Reduction { kMean, kSum };

  Reduction reduction = Reduction::kMean;
  /// Targets of this value do not contribute.
  int64_t ignore_index = -100;
  /// Share of each target that is spread over all classes, in [0, 1).
  double label_smoothing = 0;
  /// Rows whose logits exist at the same time; 0: 256 on the CPU, elsewhere as
  /// many as have 256 MiB of logits.
  int64_t chunk_rows = 0;
};

/// cross_entropy(hidden @ weight.T + bias, targets), chunk by chunk: instead of
/// 2 or 3 tensors of rows x classes, one of chunk_rows x classes exists at a
/// time. Gradients are computed together with the loss, so that nothing is
/// computed twice, and scaled in backward. The mean is over the targets that
/// are not ignored; as in LibTorch it is NaN if there are none. `weight` and
/// `bias` may be sharded by an Engine, frozen, or shared with an embedding.
///
/// @param hidden [..., width], floating point.
/// @param weight [classes, width], of hidden's dtype.
/// @param bias [classes], of hidden's dtype; undefined for none.
/// @param targets int64, of hidden's shape without the last dimension.
/// @return scalar; float32 if hidden is less precise than that. So are the sums
///   over chunks: gradients of weight and bias are rounded once.
/// @throws tessera::Error on other shapes or dtypes.
///
/// Deterministic. Has no second derivative.
at::Tensor chunked_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const at::Tensor& targets,
    const ChunkedCrossEntropyOptions& options = {});

/// The same without a bias.
at::Tensor chunked_cross_entropy(
    const at::Tensor& hidden,
    const at::Tensor& weight,
    const at::Tensor& targets,
    const ChunkedCrossEntropyOptions& options = {});

} // namespace tessera
