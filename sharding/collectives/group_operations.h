// SPDX-License-Identifier: Apache-2.0
#pragma once
// Differentiable collectives over a group.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensors/dim_split.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::sharding {

/// [Note: collectives and their gradients] Over a tensor-parallel group a
/// tensor is one of three things: equal on all ranks (whole), each rank's part
/// of a dimension (parts), or a summand of the tensor (partial). The loss is
/// whole, and every rank computes all of it. The gradient of a tensor that is
/// whole and used whole is whole; that of a tensor that is whole and used for
/// parts is partial. The functions below form pairs of which each is the
/// gradient of the other:
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
/// that all ranks use in the same way: their gradients of it are equal, and a
/// sum would count them several times. all_gather_parts() is for a result that
/// each rank uses for a part of a layer: each rank has a summand of its
/// gradient, and taking only the own part would drop the contributions of the
/// other ranks.
///
/// All are collective, block, and must be called by all ranks of the group in
/// the same order, in backward too, so whether the argument requires a gradient
/// must not differ between ranks. They are differentiable twice. `group` must
/// outlive the graph. In a group of one rank they return their argument.

/// Whole to whole, used for parts; see the note.
at::Tensor copy_to_group(const at::Tensor& full, Communicator& group);

/// Partial to whole.
at::Tensor reduce_over_group(const at::Tensor& partial, Communicator& group);

/// Parts of dimension `dim` to whole.
/// @throws tessera::Error when the length of the part does not match `split`.
at::Tensor gather_parts(
    const at::Tensor& part,
    int64_t dim,
    const DimSplit& split,
    Communicator& group);

/// Whole to this rank's part of dimension `dim`.
/// @throws tessera::Error when the length of the dimension is not
///   `split.size()`.
at::Tensor take_part(
    const at::Tensor& full,
    int64_t dim,
    const DimSplit& split,
    Communicator& group);

/// Equal parts of dimension `dim` to whole, used for parts.
at::Tensor all_gather_parts(
    const at::Tensor& part,
    int64_t dim,
    Communicator& group);

/// Partial to equal parts of dimension `dim`.
/// @throws tessera::Error when the length of the dimension is not a multiple of
///   the number of ranks.
at::Tensor reduce_scatter_parts(
    const at::Tensor& partial,
    int64_t dim,
    Communicator& group);

/// Returns the mean of `local` over the ranks, equal on all of them; the
/// gradient is that of each rank's own value, unscaled. It is for losses of
/// ranks that see different tokens and average their gradients afterwards
/// (ParallelGroup::kGradients): that average is then the gradient of the mean.
at::Tensor mean_over_group(const at::Tensor& local, Communicator& group);

} // namespace tessera::sharding
