// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters that several stages of a pipeline have, such as an embedding that
// is the head as well.

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

namespace tessera {

/// Trainable parameters of one name on several stages are one parameter. Each
/// stage has a copy, divided over its own ranks; the copies start from the
/// first one's values and are updated with the sum of their gradients, so that
/// they stay the same bits. In norms the first one counts.
class TiedStages {
 public:
  /// Finds them. Collective over the ranks that hold one copy of the model;
  /// blocks until all stages have called.
  /// @param key the same on all of them, unused before.
  /// @param device of the parameters.
  /// @throws tessera::Error when one is not of the same shape and type
  ///     everywhere.
  TiedStages(
      World& world,
      const std::string& key,
      const ParallelMesh& mesh,
      const torch::nn::Module& module,
      at::Device device);

  /// For GroupPolicy::parameters_apart: shards of a group of its own are
  /// divided alike on all stages.
  std::vector<std::string> names() const;

  /// True for a copy that is not the first one.
  bool is_later_copy(const at::Tensor& parameter) const {
    return later_.count(parameter.unsafeGetTensorImpl()) > 0;
  }

  /// Takes the first copy's values over. Collective over the model's ranks.
  void copy_values(Pager& pager);

  /// Adds up the settled gradients of all copies, once a step: later calls do
  /// nothing. Collective over the model's ranks.
  void add_gradients(Pager& pager);

 private:
  struct Tied {
    std::string name;
    Communicator* copies; ///< this rank's place on every stage that has one
    Communicator* control; ///< the same ranks, for flags
  };

  std::vector<Tied> tied_; ///< by name
  std::unordered_set<const c10::TensorImpl*> later_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

} // namespace tessera
