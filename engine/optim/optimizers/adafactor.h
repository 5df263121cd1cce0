// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdafactorOptions`: Adafactor.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

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

const engine::Optimizer& optimizer_of(std::type_identity<AdafactorOptions>);

} // namespace tessera
