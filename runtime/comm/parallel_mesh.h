// SPDX-License-Identifier: Apache-2.0
#pragma once
// How a job's ranks share the work: the sizes that a user asks for, and who
// then works with whom.

#include "tessera/runtime/comm/device_mesh.h"

#include <string>
#include <vector>

namespace tessera {

class ConfigReader;

/// Ranks along each way of sharing. All but `expert` multiply to the size of
/// the world; one of them may be 0, for all that is left.
struct ParallelSizes {
  /// Copies of the whole that see different batches.
  int data = 1;
  /// Ranks that divide parameters, gradients and optimizer state among them
  /// (ZeRO) and see different batches.
  int shard = 0;
  /// Ranks that divide each layer.
  int tensor = 1;
  /// Stages that divide the layers.
  int pipeline = 1;
  /// Ranks that divide each sequence.
  int context = 1;
  /// Ranks that divide the experts of a layer. It takes no ranks of its own: it
  /// divides data * shard * context, since experts exchange tokens between
  /// ranks that have different ones.
  int expert = 1;

  bool operator==(const ParallelSizes&) const = default;
};

/// Reads `data`, `shard`, `tensor`, `pipeline`, `context` and `expert` of the
/// object `parallel`; each keeps its default where it is not given.
/// @throws tessera::Error naming file, path, value and what was expected.
ParallelSizes read_parallel_sizes(const ConfigReader& reader);

/// Ranks that have something to do with each other.
enum class ParallelGroup {
  kTensor, ///< divide each layer
  kContext, ///< divide each sequence
  kShard, ///< divide parameters over different batches
  kData, ///< hold the same part of the parameters
  kPipeline, ///< pass one batch on, by stage
  kExpert, ///< divide the experts
  kSameExperts, ///< hold the same experts
  kBatches, ///< data x shard: see different batches
  kParameterShards, ///< shard x context: divide the same parameters
  kGradients, ///< data x shard x context: add up the same gradients
  kOneBatch, ///< pipeline x context x tensor: see the same batch
};

/// The ranks of a job as pipeline x data x shard x context x tensor, the last
/// one varying fastest: tensor groups are neighbours, and the ranks of a
/// pipeline stage follow each other. 8 ranks as pipeline 2, data 2, tensor 2
/// have the tensor groups [0,1] [2,3] [4,5] [6,7], the data groups [0,2] [1,3]
/// [4,6] [5,7], and ranks 0 to 3 as the first stage.
///
/// Plain arithmetic without communication. Immutable.
class ParallelMesh {
 public:
  /// @param local_world_size ranks of a node; those of one node are neighbours.
  /// @throws tessera::Error when a size is below 0, more than one is 0, they do
  ///     not multiply to the size of the world, tensor groups would reach
  ///     across nodes, or experts cannot be divided so; with sizes that would
  ///     do.
  ParallelMesh(
      const ParallelSizes& sizes,
      int world_size,
      int local_world_size);

  /// The same ranks as the parameters of divided experts see them: those of
  /// kSameExperts see different batches, and hold other parameters than the
  /// others, as if those were stages of a pipeline of their own. For groups of
  /// one tensor, pipeline, data, shard and gradients only.
  ParallelMesh of_experts() const;

  /// Without zeros.
  const ParallelSizes& sizes() const {
    return sizes_;
  }
  int world_size() const {
    return mesh_.world_size();
  }

  /// The ranks in the same group as `rank`, itself among them, ascending.
  /// @throws tessera::Error when there is no such rank.
  std::vector<int> ranks(ParallelGroup group, int rank) const;
  /// All groups of a kind, by their first rank. Every rank is in one of them.
  std::vector<std::vector<int>> groups(ParallelGroup group) const;

  /// Where `rank` stands in its group, from 0.
  int index(ParallelGroup group, int rank) const;
  int size(ParallelGroup group) const;

  /// A line for the whole, and one for every axis of more than one rank with
  /// its groups (of many groups, the first ones):
  ///
  ///     8 ranks as pipeline 2 x data 2 x shard 1 x context 1 x tensor 2
  ///     tensor    2  [0,1] [2,3] [4,5] [6,7]
  ///     data      2  [0,2] [1,3] [4,6] [5,7]
  ///     pipeline  2  stage 0 is ranks 0-3, stage 1 is ranks 4-7
  std::string table() const;

 private:
  ParallelMesh(const ParallelSizes& sizes, const DeviceMesh& mesh);
  const DeviceMesh& mesh_of(ParallelGroup group) const;
  /// Those of the group that the mesh has.
  std::vector<std::string> axes_of(ParallelGroup group) const;

  ParallelSizes sizes_;
  DeviceMesh mesh_;
  // The same ranks with data, shard and context divided anew.
  DeviceMesh expert_mesh_;
};

/// "tensor", "pipeline", ...
const char* name_of(ParallelGroup group);

} // namespace tessera
