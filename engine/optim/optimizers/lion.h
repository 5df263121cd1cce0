// SPDX-License-Identifier: Apache-2.0
#pragma once
// `LionOptions`: Lion.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// Lion (arXiv:2302.06675).
struct LionOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
};

const engine::Optimizer& optimizer_of(std::type_identity<LionOptions>);

} // namespace tessera
