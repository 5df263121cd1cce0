// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptimizerOptions` selects the optimizer and the hyperparameters of each
// parameter.

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

/// Adam (arXiv:1412.6980), with weight decay added to the gradient, as
/// torch::optim::Adam; rounding as in AdamWOptions.
struct AdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
};

/// Stochastic gradient descent, bit for bit as torch::optim::SGD.
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

/// LAMB (arXiv:1904.00962): the AdamW update, scaled to the norm of the
/// parameter. The trust ratio is 1 if the parameter or the update is zero, and
/// at most max_trust_ratio.
struct LambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double max_trust_ratio = 10;
};

/// Adafactor (arXiv:1804.04235) without momentum. Matrices, and the last two
/// dimensions of larger tensors, keep one second moment per row and per column;
/// other tensors one per element. Dimensions are counted in the order of
/// strides in memory.
struct AdafactorOptions {
  /// The decay rate of the second moment is 1 - step^-decay_exponent.
  double decay_exponent = 0.8;
  double eps = 1e-30; ///< added to squared gradients
  /// Updates with a larger root mean square are scaled down to this one.
  double clip_threshold = 1;
  /// Whether the learning rate is multiplied by max(min_scale, rms(parameter)).
  bool scale_by_parameter = true;
  double min_scale = 1e-3;
};

/// Muon: momentum, orthogonalized by Newton-Schulz iterations, for matrices
/// between hidden layers; AdamW for all others: tensors that are not 2-D and
/// those that `not_hidden` names.
///
/// Each rank orthogonalizes the matrices of which its shard has a part, from
/// momentum gathered over the ranks; a matrix that crosses the boundary of two
/// shards is computed on both ranks.
struct MuonOptions {
  double momentum = 0.95;
  bool nesterov = true;
  int newton_schulz_steps = 5;
  /// Multiplies orthogonal updates by 0.2 * sqrt(max(rows, columns)), which
  /// gives them the root mean square of AdamW's updates, so that both can use
  /// the same learning rate. False: by sqrt(max(1, rows / columns)).
  bool match_adamw = true;
  /// The dtype of the iterations. By default bfloat16 on CUDA and the dtype of
  /// the master weights on the CPU.
  std::optional<at::ScalarType> compute_dtype;
  /// Regular expressions that are searched for in parameter names: embeddings
  /// and heads.
  std::vector<std::string>
      not_hidden{"emb", "wte", "wpe", "head", "classifier", "score"};
  AdamWOptions rest;
};

/// A user's optimizer over views of the shards. It must work element by
/// element, as SGD, Adam, RMSprop and Adagrad do: it gets the slice of each
/// parameter that lies in this rank's shard, flattened, as a parameter of its
/// own with its gradient, so norms and shapes of whole parameters are not
/// available. Its state can be loaded only by a job of the same layout.
struct UserOptimizerOptions {
  /// Makes the optimizer for the given parameters, which are leaves of the
  /// dtype of the master weights. The engine sets learning rates by set_lr() on
  /// each group's options before every step; parameters with the same rate form
  /// one group.
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

/// Overrides for the parameters whose names match; unset fields change nothing.
struct ParameterRule {
  /// Regular expression (ECMAScript) that matches a whole name, e.g.
  /// "encoder\\..*\\.bias". It must match at least one parameter.
  std::string pattern;
  /// Factor of the engine's learning rate.
  std::optional<double> lr_scale;
  std::optional<double> weight_decay;
  std::optional<int64_t> hold_steps;
  std::optional<UpdateRule> rule;
};

/// Where master weights and moments rest. What is not on the device of the
/// parameters is updated by the CPU, or passes through the device
/// (plan_updates()). The numbers do not depend on the placement.
enum class StatePlacement {
  /// As the memory budget has room; see plan_tiers(). On the device of the
  /// parameters if no budget is set.
  kAutomatic,
  kWithParameters, ///< on the parameters' device
  kHost, ///< in the host's memory
  kNvme, ///< in files in memory.nvme_path
};

/// The part of a step that runs on a thread of its own during forward and
/// backward. The numbers are the same in all modes. The gradients of a group
/// are final in the last backward of a step if it follows the order of earlier
/// steps; the rest is left to Engine::step().
enum class UpdateOverlap {
  /// kWait if the state of some group does not rest on the device of its
  /// parameters, else kOff.
  kAutomatic,
  kOff,
  /// The norms of final gradients are computed in backward; updates begin with
  /// Engine::step() and overlap the next forward, which waits for each group
  /// when it needs it. With EngineOptions::update_in_backward, updates begin in
  /// backward and overlap it.
  kWait,
  /// Final gradients are applied in backward to a second copy of weights and
  /// state, on the assumption of no clipping and no overflow. If the assumption
  /// holds, Engine::step() takes the copy; otherwise it updates as with kWait.
  /// For AdamW, Adam, SGD and Lion on the CPU; other optimizers, and groups
  /// that two optimizers share, behave as with kWait.
  kSpeculate,
};

/// The optimizer of an engine, with overrides for some parameters.
/// ```
/// options.optimizer.lr = 3e-4;
/// options.optimizer.rule = LionOptions{.beta2 = 0.98};
/// options.optimizer.parameters = {{.pattern = ".*bias", .weight_decay = 0}};
/// ```
struct OptimizerOptions {
  double lr = 1e-3;
  /// By default 0.01 with AdamW, LAMB and Muon, else 0. A user's optimizer has
  /// its own.
  std::optional<double> weight_decay;
  /// During this many first steps of a parameter its learning rate is zero: its
  /// value does not change while its moments accumulate.
  int64_t hold_steps = 0;
  UpdateRule rule = AdamWOptions{};
  /// Applied in order; if two match, the later one wins.
  std::vector<ParameterRule> parameters;
  StatePlacement placement = StatePlacement::kAutomatic;
  UpdateOverlap overlap = UpdateOverlap::kAutomatic;
  /// The dtype of stored moments: bfloat16, or by default that of the master
  /// weights. An update computes in full precision and rounds what it stores.
  /// For AdamW, Adam, SGD, Lion and LAMB. Checkpoints of either dtype can be
  /// loaded.
  std::optional<at::ScalarType> moment_dtype;
  /// Rounds bfloat16 weights and moments stochastically instead of to nearest,
  /// so that small changes are not lost: exp_avg_sq in bfloat16 changes by less
  /// than half a unit in the last place per step, and would never change with
  /// rounding to nearest. The numbers depend on the step and the element only,
  /// not on the number of ranks.
  bool stochastic_rounding = false;
};

/// @throws tessera::Error on values outside their range, and on a pattern that
///   matches no parameter of `module`, naming the nearest.
void check(const OptimizerOptions& options, const torch::nn::Module& module);

/// Whether every rule updates each element from its own gradient and state
/// only, as AdamW, Adam, SGD and Lion do.
bool updates_elements_alone(const OptimizerOptions& options);
bool updates_elements_alone(const UpdateRule& rule);

/// "AdamW", "SGD", ...
const char* name_of(const UpdateRule& rule);

} // namespace tessera
