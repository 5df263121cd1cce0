// SPDX-License-Identifier: Apache-2.0
#pragma once
// Products at the borders of divided layers, while activations travel.

#include "tessera/sharding/parallel/tensor_parallel.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// [Note: products while activations travel] What enters a divided layer, and
/// the sum that leaves it, are exchanged in TensorParallel::pieces, of rows:
/// while one is multiplied another one travels, on CUDA on a stream of its own.
///
/// | step                | travels                | meanwhile                |
/// | enter               | gathers of pieces      | products of the pieces   |
/// | backward of enter   | a gather of what came  | gradients of the input;  |
/// |                     | in; sums of pieces of  | of the weights           |
/// |                     | its gradient           |                          |
/// | leave               | sums of pieces         | products of the pieces   |
/// | backward of leave   | gathers of pieces      | products of the pieces   |
///
/// Without sequence parallelism nothing is gathered, and sums are all-reduces.
/// With it, what is kept for backward is this rank's part of what came in: the
/// whole is gathered again (arXiv:2205.05198), and no activation of the layer
/// is kept whole on a rank. Each row's products are those of one piece;
/// libraries may round them otherwise at another number of rows.
///
/// With autocast, or when gradients are to be differentiated again, the same is
/// computed by enter_layer(), at::linear() and leave_layer().

/// Of a linear layer: W [out, in] and b [out], undefined without one.
struct LinearWeights {
  at::Tensor weight;
  at::Tensor bias;
};

/// linear(enter_layer(between), W, b) of several column-parallel layers, for
/// which what travels does so once. Collective unless the group has one rank.
/// @param between [..., in], as between layers.
/// @return for each layer [..., out], of all tokens. They may be strided: under
///     sequence parallelism that dimension lies before the others in memory.
std::vector<at::Tensor> enter_linear(
    const at::Tensor& between,
    const std::vector<LinearWeights>& layers,
    const TensorParallel& how);

/// leave_layer(linear(features, W)) of a row-parallel layer. Collective unless
/// the group has one rank.
/// @param features [..., in] of this rank, of all tokens.
/// @return [..., out], as between layers.
/// @throws tessera::Error when sequences are to be divided and cannot be.
at::Tensor leave_linear(
    const at::Tensor& features,
    const at::Tensor& weight,
    const TensorParallel& how);

} // namespace tessera
