// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TiedStages` keeps parameters equal that several pipeline stages have, such
// as an embedding that is also the output head.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/runtime/comm/init.h"
#include "tessera/runtime/comm/parallel_mesh.h"
#include "tessera/sharding/pager.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera::sharding {

/// Trainable parameters of one name on several pipeline stages are one
/// parameter. Each pipeline stage has a copy, sharded over its own ranks; the
/// copies start from the values of the first one and are updated with the sum
/// of their gradients, so that they stay bitwise equal. In norms only the first
/// one counts.
class TiedStages {
 public:
  /// Finds the tied parameters. Collective over the ranks that hold one copy of
  /// the model; blocks until all pipeline stages have called.
  /// @param key equal on all of them, not used before.
  /// @param device of the parameters.
  /// @throws tessera::Error when the shape or dtype of one differs between
  ///   pipeline stages.
  TiedStages(
      World& world,
      const std::string& key,
      const ParallelMesh& mesh,
      const torch::nn::Module& module,
      at::Device device);

  /// Names for GroupPolicy::parameters_apart: a group of its own is sharded in
  /// the same way on all pipeline stages.
  std::vector<std::string> names() const;

  /// Returns whether the parameter is a copy other than the first.
  bool is_later_copy(const at::Tensor& parameter) const {
    return later_.count(parameter.unsafeGetTensorImpl()) > 0;
  }

  /// Copies the values of the first copy to the others. Collective over the
  /// model's ranks.
  void copy_values(Pager& pager);

  /// Sums the settled gradients of all copies, once per step: later calls do
  /// nothing. Collective over the model's ranks.
  void add_gradients(Pager& pager);

 private:
  struct Tied {
    std::string name;
    /// corresponding ranks of the pipeline stages that have one
    Communicator* copies;
    Communicator* control; ///< the same ranks, for flags
  };

  std::vector<Tied> tied_; ///< by name
  std::unordered_set<const c10::TensorImpl*> later_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

} // namespace tessera::sharding
