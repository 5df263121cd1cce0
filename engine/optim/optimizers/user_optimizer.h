// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UserOptimizerOptions`: a torch::optim::Optimizer of the user.

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

namespace tessera {

namespace engine {

class Optimizer;

} // namespace engine

/// A user's optimizer over views of the shards. It must work element by
/// element, as SGD, Adam, RMSprop and Adagrad do: it gets the slice of each
/// parameter that lies in this rank's shard, flattened, as a parameter of its
/// own with its gradient, so norms and shapes of whole parameters are not
/// available. Its state can be loaded only by a job of the same layout.
struct UserOptimizerOptions {
  /// Makes the optimizer for the given parameters, which are leaves of the
  /// dtype of the master weights. The engine sets learning rates by set_lr() on
  /// each group's options before every step; parameters with the same rate form
  /// one group.
  std::function<std::unique_ptr<torch::optim::Optimizer>(
      std::vector<torch::optim::OptimizerParamGroup>)>
      make;
};

const engine::Optimizer& optimizer_of(std::type_identity<UserOptimizerOptions>);

} // namespace tessera
