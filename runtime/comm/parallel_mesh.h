// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelMesh` arranges the ranks of a job for data, sharded, tensor,
// pipeline, context and expert parallelism, with the sizes in `ParallelSizes`.

#include "tessera/runtime/comm/device_mesh.h"

#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Number of ranks for each kind of parallelism. The product of all but
/// `expert` is the world size; one of them may be 0 and gets the remaining
/// factor.
struct ParallelSizes {
  /// Replicas of the whole model that train on different batches.
  int data = 1;
  /// Ranks that shard parameters, gradients and optimizer state (ZeRO) and
  /// train on different batches.
  int shard = 0;
  /// Ranks that divide each layer.
  int tensor = 1;
  /// Pipeline stages, which divide the sequence of layers.
  int pipeline = 1;
  /// Ranks that divide each sequence.
  int context = 1;
  /// Ranks that divide the experts of a layer. It takes no ranks of its own: it
  /// divides data * shard * context, since experts exchange tokens between
  /// ranks that hold different ones.
  int expert = 1;

  bool operator==(const ParallelSizes&) const = default;
};

void visit_fields(runtime::OptionFields& fields, ParallelSizes& sizes);

/// Kinds of groups of ranks.
enum class ParallelGroup {
  kTensor, ///< divide each layer
  kContext, ///< divide each sequence
  kShard, ///< shard parameters, with different batches
  kData, ///< hold the same shards of the parameters
  kPipeline, ///< pass one batch on between pipeline stages
  kExpert, ///< divide the experts
  kSameExperts, ///< hold the same experts
  kBatches, ///< data x shard: train on different batches
  kParameterShards, ///< shard x context: shard the same parameters
  kGradients, ///< data x shard x context: reduce the same gradients
  kModel, ///< pipeline x tensor: together hold one copy of the model's shards
  kOneBatch, ///< pipeline x context x tensor: train on the same batch
};

/// The ranks of a job as pipeline x data x shard x context x tensor, of which
/// the last varies fastest: tensor groups are neighbors, and the ranks of a
/// pipeline stage are contiguous. 8 ranks as pipeline 2, data 2, tensor 2 have
/// the tensor groups [0,1] [2,3] [4,5] [6,7] and the data groups [0,2] [1,3]
/// [4,6] [5,7], and ranks 0 to 3 are the first pipeline stage.
///
/// Plain arithmetic without communication. Immutable.
class ParallelMesh {
 public:
  /// @param local_world_size ranks per node; the ranks of a node are
  ///   contiguous.
  /// @throws tessera::Error when a size is negative, more than one is 0, the
  ///   product is not the world size, tensor groups would span nodes, or
  ///   `expert` does not divide data * shard * context. In the last three cases
  ///   the message suggests sizes that fit.
  ParallelMesh(
      const ParallelSizes& sizes,
      int world_size,
      int local_world_size);

  /// Never contains 0.
  const ParallelSizes& sizes() const {
    return sizes_;
  }
  int world_size() const {
    return mesh_.size();
  }

  /// The group of `rank`, seen by it, with the axes that its kind has.
  /// @throws tessera::Error when there is no such rank.
  DeviceMesh slice(ParallelGroup group, int rank) const;
  /// Its ranks, ascending.
  std::vector<int> ranks(ParallelGroup group, int rank) const {
    return slice(group, rank).ranks();
  }
  /// All groups of a kind, ordered by their first rank. Every rank is in
  /// exactly one.
  std::vector<std::vector<int>> groups(ParallelGroup group) const;

  /// Index of `rank` within its group, from 0.
  int index(ParallelGroup group, int rank) const;
  int size(ParallelGroup group) const;

  /// One line for the mesh, and one for every axis of more than one rank that
  /// lists its groups (only the first ones if there are many):
  ///
  ///     8 ranks as pipeline 2 x data 2 x shard 1 x context 1 x tensor 2
  ///     tensor    2  [0,1] [2,3] [4,5] [6,7]
  ///     data      2  [0,2] [1,3] [4,6] [5,7]
  ///     pipeline  2  stage 0: ranks 0-3, stage 1: ranks 4-7
  std::string table() const;

 private:
  const DeviceMesh& mesh_of(ParallelGroup group) const;

  ParallelSizes sizes_;
  DeviceMesh mesh_;
  // The same ranks, with data, shard and context divided differently.
  DeviceMesh expert_mesh_;
};

/// "tensor", "pipeline", ...
const char* name_of(ParallelGroup group);

} // namespace tessera
