// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExpertEngines` trains a model whose experts are divided over ranks.

#include "tessera/engine/engine.h"
#include "tessera/runtime/comm/parallel_mesh.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// Trains with two Engines: an expert is sharded over the ranks that have it
/// (ParallelGroup::kSameExperts), everything else over all ranks that have the
/// same part of the model ([Note: engines and divided experts]). Functions are
/// those of Engine, applied to both: norms are those of the whole model, and
/// both are written to the same files.
///
/// Does not support float16, because each engine would scale losses by itself,
/// nor a memory budget, which would apply to each.
///
/// Checkpoints do not depend on whether experts are divided: Engine reads and
/// writes the same ones.
class ExpertEngines {
 public:
  /// Collective.
  /// @param module has DividedExperts, as LayerContext::over_experts() of the
  ///   zoo makes them.
  /// @param options options.parallel, the mesh, is required.
  /// @throws tessera::Error as wrap(), and for the unsupported combinations
  ///   above.
  ExpertEngines(
      World& world,
      std::shared_ptr<torch::nn::Module> module,
      const EngineOptions& options);

  /// The engine of all parameters except the experts'.
  Engine& rest() {
    return rest_;
  }
  Engine& experts() {
    return experts_;
  }

  void backward(const at::Tensor& loss);
  std::vector<at::Tensor> run_pipeline(
      PipelineExecutor& stage,
      const PipelineCallbacks& callbacks);

  /// @param p finite.
  DeferredScalar clip_grad_norm(double max_norm, double p = 2);

  bool step();
  void zero_grad();
  double learning_rate() const {
    return rest_.learning_rate();
  }
  void set_learning_rate(double lr);
  void sum_over_ranks(const at::Tensor& values);

  /// Each rank visits its own experts only.
  void for_each_parameter(
      const std::function<void(const std::string&, const at::Tensor&)>& visit);

  /// The model without experts, and all experts.
  std::vector<WholeModel> whole_models();

  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {},
      int keep_last = 0);
  int64_t load(
      const std::filesystem::path& path,
      const std::vector<Checkpointable*>& states = {});

 private:
  ExpertEngines(
      World& world,
      const std::shared_ptr<torch::nn::Module>& module,
      std::shared_ptr<torch::nn::Module> experts,
      const EngineOptions& options);

  ParallelMesh experts_mesh_;
  Engine rest_;
  Engine experts_;
};

} // namespace tessera
