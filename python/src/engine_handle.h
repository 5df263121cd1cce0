// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EngineHandle` is the engine of a Python module, with all that has to live as
// long as it does.

#include "module_tree.h"
#include "python_state.h"
#include "wrap_options.h"

#include "tessera/engine/checkpoint/model_tensors.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::python {

/// Functions are called without the GIL, but visitors with it.
class EngineHandle {
 public:
  /// Collective.
  /// @param plan the layers that `parallel.tensor` ranks divide.
  EngineHandle(
      std::shared_ptr<ModuleTree> tree,
      const WrapOptions& options,
      const TensorPlan& plan);
  ~EngineHandle();
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  /// @throws tessera::Error after close().
  Engine& engine();
  /// Frees the shards; the module is usable only after Engine::unwrap().
  void close();

  BatchShare batches() const {
    return parallel_->batches();
  }

  /// The tensors of the whole model, as Engine::model_tensors() lists them now.
  /// Collective.
  const ModelTensors& list_tensors();
  /// The whole value of one tensor of that list, a copy on the CPU; undefined
  /// on all ranks but 0. Collective.
  at::Tensor read(size_t index);

 private:
  std::shared_ptr<ModuleTree> tree_;
  std::unique_ptr<ParallelRun> parallel_;
  std::optional<Engine> engine_;
  std::optional<ModelTensors> tensors_; ///< as listed last
};

} // namespace tessera::python
