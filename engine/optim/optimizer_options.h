// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which optimizer trains which parameter, and with which hyperparameters.

#include "tessera/runtime/core/name_pattern.h"
#include "tessera/runtime/kernels/adamw_shard.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

/// Adam with decoupled weight decay (arXiv:1711.05101): torch::optim::AdamW's
/// operations in their order, but for the root, which is correctly rounded: the
/// bits are the same on every processor and on CUDA. torch::optim::AdamW's root
/// may be off by one unit in the last place.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// Adam (arXiv:1412.6980), weight decay being added to the gradient:
/// torch::optim::Adam, rounded as AdamWOptions says.
struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// Stochastic gradient descent: torch::optim::SGD, bit for bit.
struct SgdOptions {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

/// Lion (arXiv:2302.06675).
struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
};

/// LAMB (arXiv:1904.00962): AdamW whose step has the length of the parameter.
/// The trust ratio is 1 where the parameter or the step is zero, and at most
/// max_trust_ratio.
struct LambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double max_trust_ratio = 10;
};

/// Adafactor (arXiv:1804.04235) without momentum. Matrices, and the last two
/// dimensions of larger tensors, keep one second moment per row and per column;
/// everything else one per element. Dimensions are those of the memory's
/// order.
struct AdafactorOptions {
  /// The second moment forgets with 1 - step^-decay_exponent.
  double decay_exponent = 0.8;
  double eps = 1e-30; ///< added to squared gradients
  /// Updates whose root mean square exceeds it are scaled down to it.
  double clip_threshold = 1;
  /// The rate is multiplied by max(min_scale, rms(parameter)).
  bool scale_by_parameter = true;
  double min_scale = 1e-3;
};

/// Muon: momentum, made orthogonal by Newton-Schulz iterations, for matrices
/// between hidden layers; AdamW for everything else: tensors that are not 2-D,
/// and those named by `not_hidden`.
///
/// Each rank orthogonalises the matrices that its shard has a part of, from
/// momentum gathered over the ranks; what lies across a boundary is computed on
/// both sides of it.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int newton_schulz_steps = 5;
  /// Orthogonal updates are multiplied by 0.2 * sqrt(max(rows, columns)), which
  /// gives them the root mean square of AdamW's, so that both share a learning
  /// rate. False: by sqrt(max(1, rows / columns)).
  bool match_adamw = true;
  /// Of the iterations. By default bfloat16 on CUDA and the parameter's master
  /// type on CPU.
  std::optional<at::ScalarType> compute_dtype;
  /// Regular expressions that are searched in names: embeddings and heads.
  std::vector<std::string>
      not_hidden{"emb", "wte", "wpe", "head", "classifier", "score"};
  AdamWOptions rest;
};

/// An optimizer of the user's, over views of the shards. It must work element
/// by element, as SGD, Adam, RMSprop and Adagrad do: it is given the run of
/// each parameter that lies in this rank's shard, flat, as a parameter of its
/// own with its gradient, so that norms, ranks or shapes mean nothing to it.
/// Its state can be loaded only by a job of the same layout.
struct UserOptimizerOptions {
  /// Makes it for the given parameters, which are leaves of the master's type.
  /// Rates are set by set_lr() of each group's options before every step;
  /// parameters of one rate are one group.
  std::function<std::unique_ptr<torch::optim::Optimizer>(
      std::vector<torch::optim::OptimizerParamGroup>)>
      make;
};

using UpdateRule = std::variant<
    AdamWOptions,
    AdamOptions,
    SgdOptions,
    LionOptions,
    LambOptions,
    AdafactorOptions,
    MuonOptions,
    UserOptimizerOptions>;

/// Changes for the parameters that it names; what is not set stays.
struct ParameterRule {
  /// Regular expression (ECMAScript) that matches a whole name, e.g.
  /// "encoder\\..*\\.bias". It must match at least one parameter.
  std::string pattern;
  /// Times the engine's learning rate.
  std::optional<double> lr_scale;
  std::optional<double> weight_decay;
  std::optional<int64_t> hold_steps;
  std::optional<UpdateRule> rule;
};

/// Where master weights and moments rest. What is not on the parameters' device
/// is updated by the CPU. The numbers are the same wherever they rest.
enum class StatePlacement {
  /// As the memory budget has room: see StateTiers. On the parameters' device
  /// where no budget is set.
  kAutomatic,
  kWithParameters, ///< on the parameters' device
  kHost, ///< in the host's memory
  kNvme, ///< in files in memory.nvme_path
};

/// What of a step is done beside backward, on a thread of its own. The numbers
/// are the same with all of them. A group's gradients are final in the last
/// backward of a step, when the order of the steps before is kept; the rest is
/// left to the step.
enum class UpdateOverlap {
  /// kWait where state of some group does not rest on its parameters' device;
  /// else kOff.
  kAutomatic,
  kOff,
  /// What final gradients add to their norm is computed in backward; updates
  /// begin with Engine::step() and go on beside the next forward, which waits
  /// for each group when it needs it. With EngineOptions::update_in_backward
  /// updates begin in backward, and it goes on meanwhile.
  kWait,
  /// Final gradients are applied to a second copy of weights and state in
  /// backward, with the factor that holds without clipping and without
  /// overflow. Where it holds, Engine::step() takes the copy; elsewhere it
  /// updates as with kWait. For AdamW, Adam, SGD and Lion on the CPU: other
  /// optimizers, and groups that two optimizers share, are as with kWait.
  kSpeculate,
};

/// The optimizers of a model: one rule for all parameters, and rules for those
/// that a pattern names.
/// ```
/// options.optimizer.lr = 3e-4;
/// options.optimizer.rule = LionOptions{.beta2 = 0.98};
/// options.optimizer.parameters = {{.pattern = ".*bias", .weight_decay = 0}};
/// ```
struct OptimizerOptions {
  double lr = 1e-3;
  /// By default 0.01 with AdamW, LAMB and Muon, else 0. A user's optimizer
  /// brings its own.
  std::optional<double> weight_decay;
  /// For so many of a parameter's steps its value stays while the moments
  /// collect: the learning rate is zero.
  int64_t hold_steps = 0;
  UpdateRule rule = AdamWOptions{};
  /// Applied in order; of two that match, the later one wins.
  std::vector<ParameterRule> parameters;
  StatePlacement placement = StatePlacement::kAutomatic;
  UpdateOverlap overlap = UpdateOverlap::kAutomatic;
  /// What moments are kept in: bfloat16, or by default the type of the master
  /// weights. An update works with exact values and rounds what it keeps. Of
  /// AdamW, Adam, SGD, Lion and LAMB. Checkpoints of either type are loaded.
  std::optional<at::ScalarType> moment_dtype;
  /// Bfloat16 weights and moments are rounded up or down by chance instead of
  /// to nearest, so that small changes are not lost: exp_avg_sq in bfloat16
  /// changes by less than half a unit in the last place a step, and stands
  /// still when it is rounded to nearest. The numbers depend on the step and
  /// the element alone, not on the number of ranks.
  bool stochastic_rounding = false;
};

/// @throws tessera::Error on values outside their range, and on a pattern that
///   matches no parameter of `module`, naming the nearest.
void check(const OptimizerOptions& options, const torch::nn::Module& module);

/// Whether every rule updates each element by itself, from its own gradient and
/// state: AdamW, Adam, SGD and Lion do.
bool updates_elements_alone(const OptimizerOptions& options);
bool updates_elements_alone(const UpdateRule& rule);

/// What a parameter is trained with.
struct ParameterSettings {
  double lr_scale = 1;
  double weight_decay = 0;
  int64_t hold_steps = 0;
  UpdateRule rule;
  /// 0 = OptimizerOptions::rule, else 1 + index of the ParameterRule it is of.
  size_t rule_origin = 0;
};

/// OptimizerOptions with its patterns compiled, which says what each parameter
/// is trained with.
class OptimizerRules {
 public:
  /// Not explicit: it holds nothing but the options.
  /// @throws tessera::Error on a pattern that is not a regular expression.
  OptimizerRules(OptimizerOptions options); // NOLINT(*-explicit-*)

  const OptimizerOptions& options() const {
    return options_;
  }

  /// @param names of one parameter: all that it is registered under.
  ParameterSettings settings_for(const std::vector<std::string>& names) const;

 private:
  OptimizerOptions options_;
  std::vector<NamePattern> patterns_; ///< of options_.parameters
};

/// "AdamW", "SGD", ...
const char* name_of(const UpdateRule& rule);

} // namespace tessera
