// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OneBitLambOptions`: LAMB whose ranks exchange momentum in one bit per
// element.

#include <cstdint>
#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// 1-bit LAMB (arXiv:2104.06069): LAMB for freeze_step steps, which also
/// average each parameter's trust ratio. Then the second moment and that
/// average stay as they are, and ranks exchange momentum as in 1-bit Adam,
/// whose restrictions apply; momentum is sent scaled to the same size for all
/// parameters. The trust ratio follows a second moment that goes on, with
/// gradients that are computed from the change of the momentum: it is the
/// average times the largest ratio of the roots of both moments, within the
/// limits below. Waits for the device once per parameter and step.
struct OneBitLambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double max_trust_ratio = 10;
  int64_t freeze_step = 100'000;
  /// Decay rate of the average of the trust ratio.
  double ratio_beta = 0.9;
  /// Of the factor of the average, in compressed steps.
  double min_factor = 0.5;
  double max_factor = 4;
  /// By which the factor changes at most from step to step, of itself.
  double factor_change = 0.1;
};

const engine::Optimizer& optimizer_of(std::type_identity<OneBitLambOptions>);

} // namespace tessera
