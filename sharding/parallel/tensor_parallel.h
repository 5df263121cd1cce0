// SPDX-License-Identifier: Apache-2.0
#pragma once
// How layers are divided over a tensor-parallel group, and the borders between
// what is divided and what is not.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/parallel/placement.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// What a rank draws for dropout of its part of an activation.
enum class DropoutMasks {
  kByDevice, ///< kOfWhole on the CPU, kOfRank elsewhere
  /// The mask of the whole activation, of which it takes its part: the same
  /// elements are dropped at any number of ranks. Costs the drawing of a whole
  /// mask on every rank, and attention that keeps its weights.
  kOfWhole,
  /// A mask of its part alone, with numbers of its own: nothing more is drawn
  /// than is used, and fused kernels are. Which elements are dropped depends on
  /// the number of ranks.
  kOfRank,
};

/// What all layers of a model are given. Between divided layers activations are
/// whole on every rank, or, under sequence parallelism (arXiv:2205.05198), each
/// rank has its part of every sequence: norms, dropout and residuals then work
/// on parts, and their activations take 1/size of the memory, for as many bytes
/// of communication.
struct TensorParallel {
  Communicator* group = nullptr; ///< outlives the layers and their graphs
  bool sequence = false;
  /// Of activations: 1 for [batch, sequence, features].
  int64_t sequence_dim = 1;
  DropoutMasks masks = DropoutMasks::kByDevice;
  /// In which activations travel at the borders of linear layers, each while
  /// others are multiplied ([Note: products while activations travel]).
  int64_t pieces = 2;
};

/// How activations between layers are placed: Replicate, or under sequence
/// parallelism a Shard.
Placement between_layers(const TensorParallel& how);

/// Into a divided layer: an activation between layers to a whole one, Shared.
at::Tensor enter_layer(const at::Tensor& between, const TensorParallel& how);

/// Out of a divided layer: a summand of its result to an activation between
/// layers.
at::Tensor leave_layer(const at::Tensor& partial, const TensorParallel& how);

/// A parameter that all ranks have whole and use between layers. Under sequence
/// parallelism each rank sees its own tokens only, and the gradient is the sum
/// over all: without it the replicas would drift apart.
at::Tensor whole_parameter(
    const at::Tensor& parameter,
    const TensorParallel& how);

} // namespace tessera
