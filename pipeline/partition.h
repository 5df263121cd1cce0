// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which layers of a model make up which piece of a pipeline.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// A model's layers, in order, cut into consecutive pieces of one layer or
/// more.
struct LayerPartition {
  /// The first layer of each piece, and behind the last piece the number of
  /// layers.
  std::vector<int> bounds;

  int pieces() const {
    return static_cast<int>(bounds.size()) - 1;
  }
  int begin(int piece) const {
    return bounds[static_cast<std::size_t>(piece)];
  }
  int end(int piece) const {
    return bounds[static_cast<std::size_t>(piece) + 1];
  }
  /// @throws tessera::Error when there is no such layer.
  int piece_of(int layer) const;

  bool operator==(const LayerPartition&) const = default;
};

/// As many layers in each piece; where they do not divide evenly, the last
/// pieces have one more: they keep fewer micro-batches' activations.
/// @throws tessera::Error when there are fewer layers than pieces.
LayerPartition partition_by_count(int layers, int pieces);

struct LayerCost {
  /// Forward and backward, in any one unit.
  double time = 1;
  /// What a piece needs for this layer at all times (weights, gradients,
  /// optimizer state), and for each micro-batch that it stores.
  int64_t state_bytes = 0;
  int64_t activation_bytes = 0;
};

/// What a piece may use.
struct PieceLimit {
  int64_t bytes = 0;
  /// Micro-batches that it stores; see ScheduleFacts::peak_stored.
  int stored_micro_batches = 1;
};

/// The cut whose slowest piece is fastest, among those that stay within the
/// limits. Exact. Of several such cuts, one whose first piece is shortest.
/// @param limits by piece, or empty for no limits.
/// @throws tessera::Error when there are fewer layers than pieces, a cost is
///     negative or not a number, the limits are not as many as the pieces, or
///     no cut stays within them; the last one names the factor by which all of
///     them would have to grow.
LayerPartition partition_by_cost(
    const std::vector<LayerCost>& costs,
    int pieces,
    const std::vector<PieceLimit>& limits = {});

/// A cut that a user states.
/// @param piece_of_layer the piece of each layer.
/// @throws tessera::Error when a number is not one of the pieces', goes back to
///     an earlier piece, or leaves a piece without layers; naming the layer.
LayerPartition partition_by_map(
    const std::vector<int>& piece_of_layer,
    int pieces);

} // namespace tessera
