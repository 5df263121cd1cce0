// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ContextParallel` describes how sequences are sharded over context-parallel
// ranks; the functions below slice tensors and combine results.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/context_parallel/context_layout.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

enum class ContextKind {
  kRing, ///< ring_attention()
  kUlysses, ///< ulysses_attention()
};

/// Context parallelism options shared by all layers of a model.
///
/// [Note: losses over divided sequences] Context-parallel ranks have the same
/// batch and different tokens, and average their gradients with all other ranks
/// (ParallelGroup::kGradients). So the loss has the same value on all of them,
/// and each rank's gradient is n times the share of its tokens: the average
/// over n ranks is the gradient.
struct ContextParallel {
  /// ParallelGroup::kContext; must outlive the layers and their graphs.
  Communicator* group = nullptr;
  ContextKind kind = ContextKind::kUlysses;
  ContextLayout layout = ContextLayout::kContiguous;
  /// Connects the same ranks, for kRing; must outlive the layers and their
  /// graphs.
  runtime::RingChannels* ring = nullptr;
};

/// @throws tessera::Error when a group or ring is missing, or they consist of
///   different ranks.
void check(const ContextParallel& cp);

/// Returns this rank's tokens along dimension `dim` of a tensor that is whole
/// on all ranks.
at::Tensor local_context_part(
    const at::Tensor& full,
    int64_t dim,
    const ContextParallel& cp);

/// Returns the tokens of all ranks, in sequence order, for results that all
/// ranks use in the same way; for gradients see
/// [Note: losses over divided sequences]. Collective; blocks.
at::Tensor full_context(
    const at::Tensor& local,
    int64_t dim,
    const ContextParallel& cp);

/// Returns the sum of `local_sum` over the ranks, divided by `count`: a mean
/// over tokens, whose number may differ between ranks. For gradients see [Note:
/// losses over divided sequences]. Collective; blocks.
/// @param count total over all ranks, known to every rank.
at::Tensor context_mean(
    const at::Tensor& local_sum,
    const at::Tensor& count,
    const ContextParallel& cp);

} // namespace tessera
