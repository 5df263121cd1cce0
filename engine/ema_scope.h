// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EmaScope` puts the averages of the trained weights in the place of the
// weights.

#include <memory>

namespace tessera::sharding {

class Pager;

} // namespace tessera::sharding

namespace tessera::engine {

class ShardedOptimizer;

} // namespace tessera::engine

namespace tessera {

/// As long as it lives, the wrapped module computes with the averages, and
/// Engine::save_weights(), gather() and the like read them. Weights are not
/// changed meanwhile: no backward, step, save() or load(). When it ends, they
/// are what they were, to the last bit.
///
/// Made by Engine::ema(), on all ranks, and ends on all ranks. It has no effect
/// at its end if the engine has ended before.
class [[nodiscard]] EmaScope {
 public:
  EmaScope(
      sharding::Pager& pager,
      engine::ShardedOptimizer& optimizer,
      std::weak_ptr<const void> engine);
  ~EmaScope();
  EmaScope(EmaScope&& other) noexcept;
  EmaScope(const EmaScope&) = delete;
  EmaScope& operator=(const EmaScope&) = delete;
  EmaScope& operator=(EmaScope&&) = delete;

 private:
  sharding::Pager* pager_; ///< null after a move
  engine::ShardedOptimizer* optimizer_;
  std::weak_ptr<const void> engine_; ///< owns both
};

} // namespace tessera
