// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training a model whose experts are divided over ranks.

#include "tessera/engine/engine.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
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
  void set_learning_rate(double lr);
  void sum_over_ranks(const at::Tensor& values);

  /// Experts with the names that they have in the whole model; each rank visits
  /// its own.
  void for_each_parameter(
      const std::function<void(const std::string&, const at::Tensor&)>& visit);

  /// Writes "step-N" in `folder`, and of each part of the experts "step-N" in
  /// "experts-I". Those that are there before stay complete whenever the job
  /// dies. @return the checkpoint of the rest.
  std::filesystem::path save(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {},
      int keep_last = 0);

  /// Takes the latest checkpoint in a folder over, on as many expert, tensor
  /// and pipeline ranks as it was saved by. @throws tessera::Error as
  /// Engine::load(), and when the ranks divide experts otherwise.
  int64_t load(
      const std::filesystem::path& folder,
      const std::vector<Checkpointable*>& states = {});

 private:
  ExpertEngines(
      World& world,
      const std::shared_ptr<torch::nn::Module>& module,
      std::shared_ptr<torch::nn::Module> list,
      const EngineOptions& options);
  std::filesystem::path of_experts(const std::filesystem::path& folder) const;

  /// Names in the whole model by those in the list of experts.
  std::unordered_map<std::string, std::string> names_;
  std::string part_; ///< which experts: this one of so many
  std::unique_ptr<World> same_experts_;
  Engine rest_;
  Engine experts_;
};

} // namespace tessera
