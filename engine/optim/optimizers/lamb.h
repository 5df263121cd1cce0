// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LambOptions`: LAMB.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// LAMB (arXiv:1904.00962): the AdamW update, scaled to the norm of the
/// parameter. The trust ratio is 1 if the parameter or the update is zero, and
/// at most max_trust_ratio.
struct LambOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double max_trust_ratio = 10;
};

const engine::Optimizer& optimizer_of(std::type_identity<LambOptions>);

} // namespace tessera
