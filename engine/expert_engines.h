// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training a model whose experts are divided over ranks.

#include "tessera/engine/engine.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

/// An Engine of two: an expert is divided over the ranks that have it
/// (ParallelGroup::kSameExperts), everything else over all that have the same
/// part of the model ([Note: engines and divided experts]). Functions are
/// Engine's, for both: norms are those of the whole model, and files are
/// written together.
///
/// Not with float16, whose loss scaling each would do for itself, nor with a
/// memory budget, which would hold for each.
///
/// The checkpoints of a model are the same whether its experts are divided or
/// not: Engine reads and writes them too.
class ExpertEngines {
 public:
  /// Collective.
  /// @param module has DividedExperts, as LayerContext::over_experts() of the
  ///     zoo makes them.
  /// @param options.parallel says who has what; needed.
  /// @throws tessera::Error as wrap(), and for what is refused.
  ExpertEngines(
      World& world,
      std::shared_ptr<torch::nn::Module> module,
      const EngineOptions& options);

  /// Of all parameters but the experts'.
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
  double clip_grad_norm(double max_norm, double p = 2);

  bool step();
  void zero_grad();
  double learning_rate() const {
    return rest_.learning_rate();
  }
  void set_learning_rate(double lr);
  void sum_over_ranks(const at::Tensor& values);

  /// Each rank visits its own experts.
  void for_each_parameter(
      const std::function<void(const std::string&, const at::Tensor&)>& visit);

  /// Of the rest, and of all experts.
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
