// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OneBitAdamOptions` and `ZeroOneAdamOptions`: Adam whose ranks exchange
// momentum in one bit per element.

#include <cstdint>
#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// 1-bit Adam (arXiv:2102.02888): AdamW for freeze_step steps, with its
/// operations and bits; then the second moment stays as it is, bias-corrected,
/// and each rank adds its own gradient to the momentum, which the ranks average
/// in one bit per element with error feedback. Elements without a gradient in
/// the first steps are not trained afterwards.
///
/// Every rank has all parameters and all state (ShardingOptions::shard_ranks =
/// 1), on the device of the parameters. Gradients are not averaged after the
/// first steps, so that they cannot be clipped, nor their norm be read, and
/// float16 cannot be trained.
struct OneBitAdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  /// Steps with averaged gradients, 15 % to 25 % of all steps. The second
  /// moment must be stable by then: at least a few times 1 / (1 - beta2).
  int64_t freeze_step = 100'000;
};

/// 0/1 Adam (arXiv:2202.06009) with an exchange in every step: as 1-bit Adam,
/// without a first phase. Gradients are averaged only in steps that update the
/// second moment, whose distance doubles after every var_update_scaler of them,
/// and no more after var_freeze_step. The paper's local steps, in which ranks
/// exchange nothing, are not implemented: var_update_scaler and var_freeze_step
/// alone determine what is sent.
struct ZeroOneAdamOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t var_freeze_step = 100'000;
  int64_t var_update_scaler = 16;
};

const engine::Optimizer& optimizer_of(std::type_identity<OneBitAdamOptions>);
const engine::Optimizer& optimizer_of(std::type_identity<ZeroOneAdamOptions>);

} // namespace tessera
