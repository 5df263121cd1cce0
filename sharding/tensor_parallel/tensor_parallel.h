// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TensorParallel` describes how layers are partitioned over a tensor-parallel
// group.

#include "tessera/runtime/comm/communicator.h"

#include <cstdint>

namespace tessera {

/// How a rank draws the dropout mask for its partition of an activation.
enum class DropoutMasks {
  kByDevice, ///< kOfWhole on the CPU, kOfRank elsewhere
  /// The rank's part of the mask of the whole activation: the same elements are
  /// dropped for any number of ranks. Every rank draws a whole mask, and
  /// attention has to materialize its weights.
  kOfWhole,
  /// A mask of the rank's partition only, with random numbers of its own: no
  /// more is drawn than is used, and fused kernels work. Which elements are
  /// dropped depends on the number of ranks.
  kOfRank,
};

/// Tensor parallelism options shared by all layers of a model. Between
/// partitioned layers, activations are whole on every rank or, under sequence
/// parallelism (arXiv:2205.05198), each rank has its slice of every sequence:
/// norms, dropout and residuals then work on slices, and their activations take
/// 1/size of the memory, for the same number of bytes communicated.
struct TensorParallel {
  Communicator* group = nullptr; ///< must outlive the layers and their graphs
  bool sequence = false;
  /// Sequence dimension of activations: 1 for [batch, sequence, features].
  int64_t sequence_dim = 1;
  DropoutMasks masks = DropoutMasks::kByDevice;
  /// Number of pieces in which activations are communicated at the boundaries
  /// of linear layers, overlapped with the matrix products of other pieces
  /// ([Note: products while activations travel]).
  int64_t pieces = 2;
};

} // namespace tessera
