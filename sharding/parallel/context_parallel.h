// SPDX-License-Identifier: Apache-2.0
#pragma once
// How sequences are divided over context-parallel ranks, and results joined.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

enum class ContextKind {
  kRing, ///< ring_attention()
  kUlysses, ///< ulysses_attention()
};

/// What all layers of a model are given.
///
/// [Note: losses over divided sequences] Context-parallel ranks have the same
/// batch and different tokens, and average their gradients with all others
/// (ParallelGroup::kGradients). So a loss is the same number on all of them,
/// and each rank's gradient is n times its tokens' share: the average over n
/// ranks is the gradient.
struct ContextParallel {
  /// ParallelGroup::kContext; outlives the layers and their graphs.
  Communicator* group = nullptr;
  ContextKind kind = ContextKind::kUlysses;
  ContextLayout layout = ContextLayout::kContiguous;
  /// Between the same ranks, for kRing; outlives the layers and their graphs.
  RingChannels* ring = nullptr;
};

/// @throws tessera::Error when a group or ring is missing or they are not of
///     the same ranks.
void check(const ContextParallel& how);

/// This rank's tokens of dimension `dim` of what all ranks have.
at::Tensor own_context_part(
    const at::Tensor& whole,
    int64_t dim,
    const ContextParallel& how);

/// The tokens of all ranks, in the order of the sequence, for results that all
/// ranks go on with in the same way; gradients as the note has it. Collective,
/// blocks.
at::Tensor whole_context(
    const at::Tensor& own,
    int64_t dim,
    const ContextParallel& how);

/// The sum of all ranks' numbers divided by `count`, gradients as the note has
/// it: a mean over tokens, of which ranks may have different numbers.
/// Collective, blocks.
/// @param count of all ranks, which every rank knows.
at::Tensor context_mean(
    const at::Tensor& own_sum,
    const at::Tensor& count,
    const ContextParallel& how);

} // namespace tessera
