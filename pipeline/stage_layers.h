// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of a model's layers one stage of a pipeline has.

#include "tessera/pipeline/partition.h"
#include "tessera/pipeline/pipeline_schedule.h"

#include <vector>

namespace tessera {

/// Where a model is cut into pieces.
enum class PipelineCut {
  kLayers, ///< as many layers in each, see partition_by_count()
  kCost, ///< the slowest piece is as fast as can be, see partition_by_cost()
};

/// One stage of a pipeline, for whoever builds a model's part. By default the
/// only one.
struct PipelinePlace {
  int stages = 1;
  int chunks = 1; ///< pieces of the model on each stage; see PipelineShape
  int stage = 0;
  /// The piece of each layer, as partition_by_map() takes it; empty: as `cut`
  /// says.
  std::vector<int> piece_of_layer;
  PipelineCut cut = PipelineCut::kLayers;

  bool is_whole() const {
    return stages == 1 && chunks == 1;
  }
};

/// The layers of a model of `layers` layers that lie on one stage. What comes
/// before the layers is with the first one, what comes behind with the last.
/// Immutable.
class StageLayers {
 public:
  /// @throws tessera::Error when there are fewer layers than pieces, or the map
  ///     is not one of all layers to all pieces.
  StageLayers(const PipelinePlace& place, int layers);

  /// @param layers what each costs, with the first and the last one what lies
  ///     before and behind them; for PipelineCut::kCost.
  StageLayers(const PipelinePlace& place, const std::vector<LayerCost>& layers);

  /// Of the whole model.
  int count() const {
    return count_;
  }
  int chunks() const {
    return shape_.chunks;
  }
  /// The layers [begin, end) of a chunk of this stage.
  int begin(int chunk) const {
    return partition_.begin(shape_.piece(stage_, chunk));
  }
  int end(int chunk) const {
    return partition_.end(shape_.piece(stage_, chunk));
  }

  bool has(int layer) const;
  bool has_first() const {
    return has(0);
  }
  bool has_last() const {
    return has(count_ - 1);
  }
  bool is_whole() const {
    return shape_.stages == 1;
  }
  /// All layers of this stage, ascending.
  std::vector<int> own() const;

 private:
  int count_;
  PipelineShape shape_;
  int stage_;
  LayerPartition partition_;
};

} // namespace tessera
