// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StageLayers` lists the layers of a model that one pipeline stage holds.

#include "tessera/pipeline/partition.h"
#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera::pipeline {

/// How a model is cut into pieces.
enum class PipelineCut {
  kLayers, ///< equal numbers of layers, see partition_by_count()
  kCost, ///< the fastest slowest piece, see partition_by_cost()
};

/// The place of a pipeline stage, from which its part of a model is built. By
/// default the only pipeline stage.
struct PipelinePosition {
  int stages = 1;
  int chunks = 1; ///< per pipeline stage; see PipelineShape
  int stage = 0;
  /// The piece of each layer, as partition_by_map() takes it; empty: `cut`
  /// decides.
  std::vector<int> piece_of_layer;
  PipelineCut cut = PipelineCut::kLayers;

  bool is_complete() const {
    return stages == 1 && chunks == 1;
  }
};

/// The layers of a model of `layers` layers that lie on one pipeline stage.
/// What comes before the layers belongs to the first one, what comes after them
/// to the last one. Immutable.
class StageLayers {
 public:
  /// @throws tessera::Error if there are fewer layers than pieces, or the map
  ///   does not map all layers to all pieces.
  StageLayers(const PipelinePosition& position, int layers);

  /// @param layers the cost of each layer, the first and the last one including
  ///   what comes before and after the layers; for PipelineCut::kCost.
  StageLayers(
      const PipelinePosition& position,
      const std::vector<LayerCost>& layers);

  /// The number of layers of the whole model.
  int count() const {
    return count_;
  }
  int chunks() const {
    return shape_.chunks;
  }
  /// The layers [begin, end) of a chunk of this pipeline stage.
  int begin(int chunk) const {
    return partition_.begin(shape_.model_chunk(stage_, chunk));
  }
  int end(int chunk) const {
    return partition_.end(shape_.model_chunk(stage_, chunk));
  }

  bool has(int layer) const;
  bool has_first() const {
    return has(0);
  }
  bool has_last() const {
    return has(count_ - 1);
  }
  bool is_complete() const {
    return shape_.stages == 1;
  }
  /// All layers of this pipeline stage, ascending.
  std::vector<int> local() const;

 private:
  int count_;
  PipelineShape shape_;
  int stage_;
  LayerPartition partition_;
};

} // namespace tessera::pipeline
