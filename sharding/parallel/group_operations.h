// SPDX-License-Identifier: Apache-2.0
#pragma once
// Collectives as operators that autograd knows.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// [Note: collectives and their gradients] Along a tensor-parallel group a
/// tensor is one of three things: the same on all ranks (whole), each rank's
/// part of a dimension (parts), or a summand of what it stands for (partial).
/// The loss is whole, and every rank computes all of it. The gradient of what
/// is whole and used whole is whole; of what is whole and used for parts,
/// partial. Each function below is the other's gradient in its pair:
///
/// | function             | forward          | backward         |
/// | copy_to_group        | nothing          | sum over ranks   |
/// | reduce_over_group    | sum over ranks   | nothing          |
/// | gather_parts         | all-gather       | own part         |
/// | take_part            | own part         | all-gather       |
/// | all_gather_parts     | all-gather       | reduce-scatter   |
/// | reduce_scatter_parts | reduce-scatter   | all-gather       |
/// | all_to_all_parts     | all-to-all       | all-to-all       |
///
/// (The last one is in exchange_operations.h.) gather_parts() is for a result
/// that all ranks go on with in the same way: their gradients of it are equal,
/// and adding them up would count them several times. all_gather_parts() is for
/// a result that each rank uses for a part of a layer: each has a summand of
/// its gradient, and taking one's own would drop what the other ranks found out
/// about it.
///
/// All are collective, block, and must be called by all ranks of the group in
/// the same order; in backward too, so whether the argument requires a gradient
/// must not differ between ranks. They can be differentiated twice. `group`
/// outlives the graph. In a group of one they return their argument.

/// Whole to whole, used for parts.
at::Tensor copy_to_group(const at::Tensor& whole, Communicator& group);

/// Partial to whole.
at::Tensor reduce_over_group(const at::Tensor& partial, Communicator& group);

/// Parts of dimension `dim` to whole.
/// @throws tessera::Error when the part is not as long as `split` says.
at::Tensor gather_parts(
    const at::Tensor& part,
    int64_t dim,
    const DimSplit& split,
    Communicator& group);

/// Whole to this rank's part of dimension `dim`.
/// @throws tessera::Error when the dimension is not `split.size()`.
at::Tensor take_part(
    const at::Tensor& whole,
    int64_t dim,
    const DimSplit& split,
    Communicator& group);

/// Equal parts of dimension `dim` to whole, used for parts.
at::Tensor all_gather_parts(
    const at::Tensor& part,
    int64_t dim,
    Communicator& group);

/// Partial to equal parts of dimension `dim`.
/// @throws tessera::Error when the ranks do not divide the dimension.
at::Tensor reduce_scatter_parts(
    const at::Tensor& partial,
    int64_t dim,
    Communicator& group);

/// The mean of all ranks' numbers, the same on all of them; the gradient stays
/// each rank's own. It is for losses of ranks that see different tokens and
/// average their gradients afterwards (ParallelGroup::kGradients): that average
/// is then the gradient of the mean.
at::Tensor mean_over_group(const at::Tensor& own, Communicator& group);

} // namespace tessera
