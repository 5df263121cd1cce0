// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SgdOptions`: stochastic gradient descent.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// Stochastic gradient descent, bit for bit as torch::optim::SGD.
struct SgdOptions {
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
};

const engine::Optimizer& optimizer_of(std::type_identity<SgdOptions>);

} // namespace tessera
