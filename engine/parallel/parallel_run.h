// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelRun` sets up a job whose ranks divide a model: its options in a
// configuration, and the mesh, communicators and pipeline that models and the
// training loop use.

#include "tessera/pipeline/make_schedule.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/pipeline/stage_layers.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/sharding/context_parallel/context_parallel.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

struct ParallelOptions {
  ParallelSizes sizes;
  /// Sequence parallelism: tensor-parallel ranks also divide sequences between
  /// layers.
  bool sequence = false;
  /// Pieces in which tensor-parallel ranks exchange activations; see
  /// TensorParallel::pieces.
  int64_t overlap_pieces = TensorParallel().pieces;
  /// How the ranks of ParallelSizes::context compute attention, and which
  /// tokens each of them has.
  ContextKind context_attention = ContextKind::kUlysses;
  ContextLayout context_layout = ContextLayout::kContiguous;
  PipelineScheduleKind schedule = PipelineScheduleKind::kOneForwardOneBackward;
  /// Chunks of the model on each pipeline stage; more than one for kInterleaved
  /// only.
  int chunks = 1;
  /// Where the model is cut into chunks; see PipelinePosition.
  std::vector<int> piece_of_layer;
  pipeline::PipelineCut cut = pipeline::PipelineCut::kLayers;
  /// See PipelineOptions. Not part of a configuration: it follows from the
  /// data.
  bool shapes_vary = false;
};

void visit_fields(runtime::OptionFields& fields, ParallelOptions& options);

/// Checks what can be checked without a job; ParallelRun does it too.
/// @throws tessera::Error on a value out of range, or where two options
///   contradict each other.
void check(const ParallelOptions& options);

/// Sequences are padded to a multiple of this because ranks divide them.
int sequence_multiple(const ParallelOptions& options);

/// The share of one rank among the batches that the job's ranks see at a time.
struct BatchShare {
  int index = 0;
  int count = 1; ///< different batches at a time
  int sequence_multiple = 1; ///< as sequence_multiple()
};

/// One rank of such a job. With the default sizes, all ranks shard parameters
/// and see different batches, and there is no pipeline.
class ParallelRun {
 public:
  /// Collective over the job, in the same order as the creation of other
  /// communicators; blocks until the neighboring pipeline stages have called
  /// it.
  /// @param world must outlive this object.
  /// @param micro_batches of one step on a rank, which a pipeline processes.
  /// @throws tessera::Error if the sizes do not fit the job, or the schedule
  ///   does not fit the sizes and micro-batches; the message names values that
  ///   fit.
  ParallelRun(World& world, const ParallelOptions& options, int micro_batches);

  const ParallelMesh& mesh() const {
    return groups_.mesh();
  }
  /// For EngineOptions::parallel: null with the default sizes, for which
  /// ShardingOptions decides which ranks shard parameters.
  const ParallelMesh* mesh_or_null() const {
    return options_.sizes == ParallelSizes() ? nullptr : &mesh();
  }
  ParallelGroups& groups() {
    return groups_;
  }

  /// The batches of this rank. Ranks that divide a model see the same batches.
  BatchShare batches() const;
  /// The ranks that see the same batches as this one; null if there are no
  /// others. The first call is collective over them.
  Communicator* one_batch() {
    return mesh().size(ParallelGroup::kOneBatch) > 1
               ? &groups_[ParallelGroup::kOneBatch]
               : nullptr;
  }
  /// True on exactly one rank per batch: among the ranks of the last pipeline
  /// stage, which have the losses, the first of those that divide its layers.
  bool reports_loss() const;

  /// The tensor parallelism to construct layers with; nothing if layers are not
  /// divided.
  std::optional<TensorParallel> tensor();
  /// Nothing if sequences are not divided.
  std::optional<ContextParallel> context();

  /// The place of this rank's layers in the model.
  pipeline::PipelinePosition position() const;
  /// Null without pipeline stages.
  PipelineExecutor* pipeline() {
    return executor_.get();
  }

 private:
  int index(ParallelGroup group) const {
    return mesh().index(group, rank_);
  }

  ParallelOptions options_;
  int rank_;
  ParallelGroups groups_;
  std::unique_ptr<runtime::RingChannels>
      context_ring_; ///< for ContextKind::kRing
  std::unique_ptr<runtime::RingChannels> stages_;
  std::unique_ptr<PipelineExecutor> executor_;
};

} // namespace tessera
