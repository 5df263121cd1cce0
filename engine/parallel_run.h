// SPDX-License-Identifier: Apache-2.0
#pragma once
// A job whose ranks divide a model: what a configuration says of it, and what
// model and training loop need.

#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/pipeline/stage_layers.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/parallel/context_parallel.h"
#include "tessera/sharding/parallel/tensor_parallel.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera {

class ConfigReader;

struct ParallelOptions {
  ParallelSizes sizes;
  /// Tensor-parallel ranks divide sequences between layers, too.
  bool sequence = false;
  /// In which tensor-parallel ranks exchange activations; see
  /// TensorParallel::pieces.
  int64_t overlap_pieces = TensorParallel().pieces;
  /// How attention is made over the ranks of ParallelSizes::context, and which
  /// tokens each has.
  ContextKind context_attention = ContextKind::kUlysses;
  ContextLayout context_layout = ContextLayout::kContiguous;
  PipelineScheduleKind schedule = PipelineScheduleKind::kOneForwardOneBackward;
  /// Pieces of the model on each stage; more than one for kInterleaved only.
  int chunks = 1;
  /// Where the model is cut: see PipelinePlace.
  std::vector<int> piece_of_layer;
  PipelineCut cut = PipelineCut::kLayers;
  /// See PipelineOptions. Not in a configuration: it follows from the data.
  bool shapes_vary = false;
};

/// Reads the object `parallel` of a configuration; configs/README.md lists its
/// keys. What is not given keeps its default.
/// @throws tessera::Error naming file, path, value and what was expected.
ParallelOptions read_parallel_options(const ConfigReader& reader);

/// Of the batches that the job's ranks see at a time, those of one rank.
struct BatchShare {
  int index = 0;
  int count = 1; ///< different batches at a time
  /// Sequences are padded to a multiple of it, as ranks divide them.
  int sequence_multiple = 1;
};

/// One rank of such a job. With the default sizes all ranks divide parameters,
/// see different batches, and there is no pipeline.
class ParallelRun {
 public:
  /// Collective over the job, in the same order among other communicators;
  /// blocks until a stage's neighbours have called.
  /// @param world outlives this.
  /// @param micro_batches of a step on a rank, which a pipeline works on.
  /// @throws tessera::Error when the sizes do not fit the job, or the schedule
  ///     does not fit sizes and micro-batches; with those that would do.
  ParallelRun(World& world, const ParallelOptions& options, int micro_batches);

  const ParallelMesh& mesh() const {
    return groups_.mesh();
  }
  /// For EngineOptions::parallel: null with the default sizes, where
  /// PagerOptions says who divides parameters.
  const ParallelMesh* mesh_if_given() const {
    return options_.sizes == ParallelSizes() ? nullptr : &mesh();
  }
  ParallelGroups& groups() {
    return groups_;
  }

  /// Ranks that divide a model see the same batches.
  BatchShare batches() const;
  /// The ranks that see the same batches as this one; null where it is alone.
  /// Collective over them when it is first called.
  Communicator* one_batch() {
    return mesh().size(ParallelGroup::kOneBatch) > 1
               ? &groups_[ParallelGroup::kOneBatch]
               : nullptr;
  }
  /// True on one rank for each batch that is seen: on the last stage, where
  /// losses are, the first of those that divide its layers.
  bool tells_loss() const;

  /// What layers are made with; nothing where they are not divided.
  std::optional<TensorParallel> tensor();
  /// Nothing where sequences are not divided.
  std::optional<ContextParallel> context();

  /// Which layers belong here.
  PipelinePlace place() const;
  /// Null without pipeline stages.
  PipelineExecutor* pipeline() {
    return executor_.get();
  }

 private:
  int sequence_multiple() const;
  int index(ParallelGroup group) const {
    return mesh().index(group, rank_);
  }

  ParallelOptions options_;
  int rank_;
  ParallelGroups groups_;
  std::unique_ptr<RingChannels> context_ring_; ///< for ContextKind::kRing
  std::unique_ptr<RingChannels> stages_;
  std::unique_ptr<PipelineExecutor> executor_;
};

} // namespace tessera
