// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AdamWOptions` and `AdamOptions`: Adam with decoupled weight decay, and with
// weight decay in the gradient.

#include <type_traits>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

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

const engine::Optimizer& optimizer_of(std::type_identity<AdamWOptions>);
const engine::Optimizer& optimizer_of(std::type_identity<AdamOptions>);

} // namespace tessera
