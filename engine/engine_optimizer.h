// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamW`, `Adam`, `Adan`, `SGD` and `Lion` are handles of the optimizer of an
// engine, used as those of torch::optim.

#include "tessera/engine/engine.h"
#include "tessera/engine/optim/optimizer_options.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

namespace tessera {

/// Parameters with hyperparameters of their own; what is unset is as for all
/// other parameters.
struct ParameterGroup {
  std::vector<at::Tensor> parameters; ///< of the wrapped module
  std::optional<double> lr; ///< at the optimizer's own rate; see below
  std::optional<double> weight_decay;
};

/// The optimizer of an engine. The engine keeps its state and makes its steps;
/// this object sets the hyperparameters, of all parameters and of groups.
/// A learning rate that is set later, by set_lr(), Engine::set_learning_rate()
/// or an LrScheduler, is that of the parameters outside of groups with an `lr`;
/// those keep their ratio to it.
class EngineOptimizer {
 public:
  /// @param engine must outlive this object. Its EngineOptions::optimizer has
  ///   decided which optimizer it is and where its state rests.
  /// @param rule nothing: options stay as wrap() was given them.
  /// @param weight_decay nothing: by default of the optimizer.
  /// @throws tessera::Error on values out of range, a parameter that is not
  ///   trained or in two groups, or another optimizer than that of wrap().
  EngineOptimizer(
      Engine& engine,
      const std::optional<UpdateRule>& rule,
      double lr,
      std::optional<double> weight_decay,
      std::vector<ParameterGroup> groups = {});

  /// Makes one step, as Engine::step(). Collective.
  /// @return false if it was skipped because of gradients that are not finite.
  bool step() {
    return engine_->step();
  }
  /// Drops all gradients. Not collective, but all ranks must do it.
  void zero_grad() {
    engine_->zero_grad();
  }
  double lr() const {
    return engine_->learning_rate();
  }
  void set_lr(double lr) {
    engine_->set_learning_rate(lr);
  }
  const std::vector<ParameterGroup>& param_groups() const {
    return groups_;
  }

 private:
  Engine* engine_;
  std::vector<ParameterGroup> groups_;
};

/// Hyperparameters of all parameters that are in no group.
template <typename Options>
struct OptimizerSettings {
  double lr = 1e-3;
  std::optional<double> weight_decay; ///< by default that of the optimizer
  Options rule; ///< betas and the like
};

/// ```
/// auto engine = wrap(model);
/// AdamW adamw(engine, {.lr = 3e-4, .weight_decay = 0.1, .rule = {.beta2 =
/// 0.95}},
///             {{.parameters = norms_and_biases, .weight_decay = 0.0}});
/// for (auto& [x, y] : batches) {
///   engine.backward(loss(model->forward(x), y));
///   adamw.step();
/// }
/// ```
/// wrap() must have been given the same optimizer, since it plans the memory of
/// its state: `options.optimizer.rule = LionOptions{}` for Lion; AdamW is the
/// default.
template <typename Options>
class OptimizerOf : public EngineOptimizer {
 public:
  explicit OptimizerOf(
      Engine& engine,
      const OptimizerSettings<Options>& settings = {},
      std::vector<ParameterGroup> groups = {})
      : EngineOptimizer(
            engine,
            UpdateRule(settings.rule),
            settings.lr,
            settings.weight_decay,
            std::move(groups)) {}
};

using AdamW = OptimizerOf<AdamWOptions>;
using Adam = OptimizerOf<AdamOptions>;
using Adan = OptimizerOf<AdanOptions>;
using SGD = OptimizerOf<SgdOptions>;
using Lion = OptimizerOf<LionOptions>;

} // namespace tessera
