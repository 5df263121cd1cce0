// SPDX-License-Identifier: Apache-2.0
#pragma once
// `enter_linear()` and `leave_linear()` overlap the matrix products at the
// boundaries of partitioned layers with communication; `enter_layer()` and
// `leave_layer()` are the communication alone.

#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::sharding {

/// [Note: products while activations travel] The activation that enters a
/// partitioned layer, and the sum that leaves it, are communicated in
/// TensorParallel::pieces, each a range of rows: while one piece is multiplied,
/// another is communicated, on CUDA on a separate stream.
///
/// | step                | communication          | meanwhile                |
/// | enter               | gathers of pieces      | products of the pieces   |
/// | backward of enter   | a gather of the input; | gradients of the input;  |
/// |                     | sums of pieces of its  | of the weights           |
/// |                     | gradient               |                          |
/// | leave               | sums of pieces         | products of the pieces   |
/// | backward of leave   | gathers of pieces      | products of the pieces   |
///
/// Without sequence parallelism nothing is gathered, and sums are all-reduces.
/// With it, only this rank's slice of the input is kept for backward; the whole
/// is gathered again (arXiv:2205.05198), and no activation of the layer is kept
/// whole on a rank. The products of a row are computed within one piece;
/// libraries may round them differently for another number of rows.
///
/// With autocast, or when gradients are to be differentiated again, the same is
/// computed by enter_layer(), at::linear() and leave_layer().

/// Enters a partitioned layer: turns an activation between layers into a whole
/// one, placed as Shared ([Note: placements]).
at::Tensor enter_layer(const at::Tensor& between, const TensorParallel& tp);

/// Leaves a partitioned layer: turns this rank's partial result into an
/// activation between layers.
at::Tensor leave_layer(const at::Tensor& partial, const TensorParallel& tp);

/// Parameters of a linear layer: W [out, in] and b [out], undefined without
/// one.
struct LinearWeights {
  at::Tensor weight;
  at::Tensor bias;
};

/// Computes linear(enter_layer(between), W, b) for several column-parallel
/// layers, which share the communication. Collective unless the group has one
/// rank.
/// @param between [..., in], an activation between layers.
/// @return for each layer [..., out], of all tokens. May be strided: under
///   sequence parallelism the sequence dimension is outermost in memory.
std::vector<at::Tensor> enter_linear(
    const at::Tensor& between,
    const std::vector<LinearWeights>& layers,
    const TensorParallel& tp);

/// Computes leave_layer(linear(features, W)) of a row-parallel layer.
/// Collective unless the group has one rank.
/// @param features [..., in], this rank's features of all tokens.
/// @return [..., out], an activation between layers.
/// @throws tessera::Error when sequences must be sharded and cannot be.
at::Tensor leave_linear(
    const at::Tensor& features,
    const at::Tensor& weight,
    const TensorParallel& tp);

} // namespace tessera::sharding
