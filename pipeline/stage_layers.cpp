// SPDX-License-Identifier: Apache-2.0
#include "tessera/pipeline/stage_layers.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>

namespace tessera::pipeline {

namespace {

LayerPartition partition_of(
    const PipelinePosition& position,
    const std::vector<LayerCost>& costs) {
  const int model_chunks = position.stages * position.chunks;
  const int layers = static_cast<int>(costs.size());
  if (position.piece_of_layer.empty()) {
    return position.cut == PipelineCut::kCost
               ? partition_by_cost(costs, model_chunks)
               : partition_by_count(layers, model_chunks);
  }
  TESSERA_CHECK(
      static_cast<int>(position.piece_of_layer.size()) == layers,
      "piece_of_layer has entries for {} layers; the model has {}.",
      position.piece_of_layer.size(),
      layers);
  return partition_by_map(position.piece_of_layer, model_chunks);
}

} // namespace

StageLayers::StageLayers(const PipelinePosition& position, int layers)
    : StageLayers(
          position,
          std::vector<LayerCost>(static_cast<size_t>(layers))) {}

StageLayers::StageLayers(
    const PipelinePosition& position,
    const std::vector<LayerCost>& layers)
    : count_(static_cast<int>(layers.size())),
      shape_{position.stages, /*micro_batches=*/1, position.chunks},
      stage_(position.stage),
      partition_(partition_of(position, layers)) {}

bool StageLayers::has(int layer) const {
  return shape_.stage_of(partition_.model_chunk_of(layer)) == stage_;
}

std::vector<int> StageLayers::local() const {
  std::vector<int> layers;
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    for (int layer = begin(chunk); layer < end(chunk); ++layer) {
      layers.push_back(layer);
    }
  }
  std::sort(layers.begin(), layers.end());
  return layers;
}

} // namespace tessera::pipeline
