// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SgdOptions`: stochastic gradient descent.

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

const engine::Optimizer& optimizer_of(const SgdOptions&);

} // namespace tessera
