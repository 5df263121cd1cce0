// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranks that hold one copy of a model between them because they divide its
// layers, and what has to be added up over them.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/tied_stages.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <unordered_set>

namespace tessera {

/// The ranks of one tensor-parallel group in every pipeline stage. What a
/// stage's tensor-parallel ranks have whole counts once in sums over
/// parameters.
class ModelRanks {
 public:
  /// Collective over these ranks; blocks until all have called.
  /// @param key the same on all of them, unused before.
  /// @param divided parameters of which every tensor-parallel rank has a part.
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

  /// What this stage shares with others.
  TiedStages& tied() {
    return tied_;
  }

  /// True where this rank alone has all there is of the model.
  bool is_alone() const {
    return tensor_->size() == 1 && pipeline_->size() == 1;
  }
  /// True for a part of a parameter; of what all ranks of a tensor-parallel
  /// group have whole, on the first of them; of what several stages have, on
  /// the first of those.
  bool counts(const at::Tensor& parameter) const;
  /// Whether a part of the parameter is on every rank of the group.
  bool is_divided(const at::Tensor& parameter) const;

  /// Adds up a small CPU tensor over the ranks, in place, in an order that does
  /// not depend on the rank. Collective; blocks.
  void sum(const at::Tensor& values, const WaitCheck& check);
  /// Takes the largest, in place. Collective; blocks.
  void max(const at::Tensor& values, const WaitCheck& check);

 private:
  std::unique_ptr<Communicator> tensor_;
  std::unique_ptr<Communicator> pipeline_;
  TiedStages tied_;
  std::unordered_set<const c10::TensorImpl*> divided_;
};

} // namespace tessera
