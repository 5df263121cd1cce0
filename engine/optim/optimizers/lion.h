// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LionOptions`: Lion.

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// Lion (arXiv:2302.06675).
struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
};

const engine::Optimizer& optimizer_of(const LionOptions&);

} // namespace tessera
