// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LayerPartition` assigns the layers of a model to the pieces of a pipeline;
// functions compute it.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::pipeline {

/// The layers of a model, in order, cut into consecutive pieces of at least one
/// layer.
struct LayerPartition {
  /// The first layer of each piece, followed by the number of layers.
  std::vector<int> bounds;

  int model_chunks() const {
    return static_cast<int>(bounds.size()) - 1;
  }
  int begin(int model_chunk) const {
    return bounds[static_cast<std::size_t>(model_chunk)];
  }
  int end(int model_chunk) const {
    return bounds[static_cast<std::size_t>(model_chunk) + 1];
  }
  /// @throws tessera::Error if there is no such layer.
  int model_chunk_of(int layer) const;

  bool operator==(const LayerPartition&) const = default;
};

/// Equal numbers of layers per piece; if the division leaves a remainder, the
/// last pieces have one more layer each: they keep the activations of fewer
/// micro-batches.
/// @throws tessera::Error if there are fewer layers than pieces.
LayerPartition partition_by_count(int layers, int model_chunks);

struct LayerCost {
  /// Time of forward and backward, in any one unit.
  double time = 1;
  /// Bytes that a piece needs for this layer at all times (weights, gradients,
  /// optimizer state), and for each micro-batch that it stores.
  int64_t state_bytes = 0;
  int64_t activation_bytes = 0;
};

/// The memory that a piece may use.
struct ModelChunkLimit {
  int64_t bytes = 0;
  /// Micro-batches that it stores; see ScheduleFacts::peak_stored.
  int stored_micro_batches = 1;
};

/// The cut whose slowest piece is fastest, among those within the limits.
/// Exact. Of several such cuts, one whose first piece is shortest.
/// @param limits by piece, or empty for no limits.
/// @throws tessera::Error if there are fewer layers than pieces, a cost is
///   negative or not a number, the number of limits is not that of pieces, or
///   no cut stays within them; the last error names the factor by which all of
///   them would have to grow.
LayerPartition partition_by_cost(
    const std::vector<LayerCost>& costs,
    int model_chunks,
    const std::vector<ModelChunkLimit>& limits = {});

/// The cut that a user specifies.
/// @param piece_of_layer the piece of each layer.
/// @throws tessera::Error if a number is out of range, is below that of the
///   layer before, or leaves a piece without layers; the message names the
///   layer.
LayerPartition partition_by_map(
    const std::vector<int>& piece_of_layer,
    int model_chunks);

} // namespace tessera::pipeline
