// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptimizerOptions` selects the optimizer and the hyperparameters of each
// parameter.

#include "tessera/engine/optim/optimizers/adafactor.h"
#include "tessera/engine/optim/optimizers/adam.h"
#include "tessera/engine/optim/optimizers/adan.h"
#include "tessera/engine/optim/optimizers/lamb.h"
#include "tessera/engine/optim/optimizers/lion.h"
#include "tessera/engine/optim/optimizers/muon.h"
#include "tessera/engine/optim/optimizers/one_bit_adam.h"
#include "tessera/engine/optim/optimizers/one_bit_lamb.h"
#include "tessera/engine/optim/optimizers/sgd.h"
#include "tessera/engine/optim/optimizers/user_optimizer.h"
#include "tessera/engine/optim/update_rule.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

class OptionFields;

} // namespace tessera::runtime

namespace tessera {

/// Overrides for the parameters whose names match; unset fields change nothing.
struct ParameterRule {
  /// Regular expression (ECMAScript) that matches a whole name, e.g.
  /// "encoder\\..*\\.bias". It must match at least one parameter.
  std::string pattern;
  /// Factor of the engine's learning rate.
  std::optional<double> lr_scale;
  std::optional<double> weight_decay;
  std::optional<int64_t> frozen_steps;
  std::optional<UpdateRule> rule;
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
  /// For optimizers that update elements alone (updates_elements_alone()) on
  /// the CPU; others, and groups that two optimizers share, behave as with
  /// kWait.
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
  /// By default 0.01 with AdamW, LAMB, Muon, 1-bit Adam,
  /// 0/1 Adam and 1-bit LAMB, else 0. A user's optimizer has
  /// its own.
  std::optional<double> weight_decay;
  /// During this many first steps of a parameter its learning rate is zero: its
  /// value does not change while its moments accumulate.
  int64_t frozen_steps = 0;
  UpdateRule rule = AdamWOptions{};
  /// Applied in order; if two match, the later one wins.
  std::vector<ParameterRule> parameters;
  UpdateOverlap overlap = UpdateOverlap::kAutomatic;
  /// The dtype of stored moments: bfloat16, or by default that of the master
  /// weights. An update computes in full precision and rounds what it stores.
  /// For LAMB and optimizers that update elements alone. Checkpoints of either
  /// dtype can be loaded.
  std::optional<at::ScalarType> moment_dtype;
  /// Rounds bfloat16 weights and moments stochastically instead of to nearest,
  /// so that small changes are not lost: exp_avg_sq in bfloat16 changes by less
  /// than half a unit in the last place per step, and would never change with
  /// rounding to nearest. The numbers depend on the step and the element only,
  /// not on the number of ranks.
  bool stochastic_rounding = false;
  /// Keeps an exponential moving average of the trained weights with this
  /// decay, below 1, e.g. 0.999; 0: none. See Engine::ema().
  double ema_decay = 0;
  /// The decay of step n, counted from 0, is at most (1 + n) / (10 + n), so
  /// that the average follows the weights closely at first.
  bool ema_warmup = false;
};

void visit_fields(runtime::OptionFields& fields, ParameterRule& rule);
void visit_fields(runtime::OptionFields& fields, OptimizerOptions& options);

/// @throws tessera::Error on values outside their range.
void check(const OptimizerOptions& options);

/// @throws tessera::Error if a user-defined optimizer, which has its own, is
///   given a weight decay.
void check_weight_decay(
    const UpdateRule& rule,
    const std::optional<double>& weight_decay);

/// Whether every rule updates each element from its own gradient and state
/// only.
bool updates_elements_alone(const OptimizerOptions& options);

} // namespace tessera
