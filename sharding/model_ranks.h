// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModelRanks` sums values over the ranks that divide one copy of a model by
// tensor and pipeline parallelism.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/tied_stages.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_set>

namespace tessera::sharding {

/// The ranks of one tensor-parallel group in every pipeline stage. A parameter
/// that is whole on all tensor-parallel ranks of a pipeline stage counts once
/// in sums over parameters.
class ModelRanks {
 public:
  /// Collective over these ranks; blocks until all have called.
  /// @param key equal on all of them, not used before.
  /// @param divided parameters that are partitioned over the tensor-parallel
  ///   ranks.
  /// @param device of the parameters.
  ModelRanks(
      World& world,
      const std::string& key,
      const ParallelMesh& mesh,
      const torch::nn::Module& module,
      std::unordered_set<const c10::TensorImpl*> divided,
      at::Device device);

  int stages() const {
    return pipeline_->size();
  }

  /// Parameters that this pipeline stage shares with others.
  TiedStages& tied() {
    return tied_;
  }

  /// Returns whether this rank counts the parameter in sums: true for a
  /// partition of a parameter; for a parameter that is whole on all ranks of a
  /// tensor-parallel group, true on the first of them; for one that several
  /// pipeline stages have, true on the first of those.
  bool counts(const at::Tensor& parameter) const;

  /// Sums a small CPU tensor over the ranks, in place, in an order that does
  /// not depend on the rank. Collective; blocks.
  void sum(const at::Tensor& values, const WaitCheck& check);
  /// Takes the maximum over the ranks, in place. Collective; blocks.
  void max(const at::Tensor& values, const WaitCheck& check);

 private:
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
  TiedStages tied_;
  std::unordered_set<const c10::TensorImpl*> divided_;
};

} // namespace tessera::sharding
