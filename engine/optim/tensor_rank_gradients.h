// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_tensor_rank_gradients()` finds tensor-parallel ranks that were given
// different batches.

#include "tessera/sharding/paging/gradient_norm.h"
#include "tessera/sharding/paging/pager.h"

namespace tessera::engine {

/// Compares the settled gradients of parameters that every rank of a
/// tensor-parallel group has whole, such as biases of row-parallel layers and
/// the weights of norms. Operators on parts give them the same gradient on all
/// of these ranks where the ranks have the same batch and draw the same random
/// numbers; otherwise the copies of such a parameter drift apart, and nothing
/// else shows it. Norms are compared, not bits: kernels of an accelerator may
/// add up in any order. Gradients that are not finite are left to others.
/// Collective over the job, after all ranks have agreed on a step; blocks.
/// @throws tessera::Error on all ranks, naming the ranks.
void check_tensor_rank_gradients(
    sharding::Pager& pager,
    sharding::GradientSums& sums);

} // namespace tessera::engine
