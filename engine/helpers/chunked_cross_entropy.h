// SPDX-License-Identifier: Apache-2.0
#pragma once
// The head of a language model and its loss, without the logits in between.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct ChunkedCrossEntropyOptions {
  enum class Reduction { kMean, kSum };

  Reduction reduction = Reduction::kMean;
  /// Targets of this value count for nothing.
  int64_t ignore_index = -100;
  /// Share of each target that is spread over all classes; from 0 to below 1.
  double label_smoothing = 0;
  /// Rows whose logits exist at the same time.
  int64_t chunk_rows = 256;
};

/// cross_entropy(hidden @ weight.T + bias, targets), chunk by chunk: in place
/// of three tensors of rows x classes there is one of chunk_rows x classes at a
/// time. Gradients are computed together with the loss, so that nothing is
/// computed twice, and scaled in backward. The mean is over the targets that
/// count; it is NaN when there are none, as LibTorch's. `weight` and `bias` may
/// be sharded by an Engine, frozen, or shared with an embedding.
///
/// @param hidden  [..., width], floating point.
/// @param weight  [classes, width], of hidden's dtype.
/// @param bias    [classes], of the same dtype; undefined for none.
/// @param targets int64, of hidden's shape without the last dimension.
/// @return scalar; float32 where hidden is less precise than that.
/// @throws tessera::Error on other shapes or dtypes. Has no second derivative.
/// Deterministic.
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
