// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StepGuard` keeps gradients that are not finite from the weights of an engine
// without loss scaling.

#include "tessera/engine/engine.h"
#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/runtime/memory/deferred_scalar.h"
#include "tessera/sharding/paging/gradient_norm.h"
#include "tessera/sharding/paging/pager.h"

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::engine {

/// "the gradient of parameter 'x' is not finite in step 12".
std::string nonfinite_text(
    const sharding::NonfiniteGradients& found,
    int64_t step);

/// All ranks decide alike: they have the same norm, or ask each other.
class StepGuard {
 public:
  /// @param on_accelerator whether gradients are computed on one, for which
  ///   OnNonfinite::kStop does not wait.
  StepGuard(OnNonfinite policy, bool on_accelerator)
      : looks_(policy == OnNonfinite::kSkip || !on_accelerator),
        stops_(policy == OnNonfinite::kStop) {}

  /// Whether a step with that norm is skipped or stopped before it changes the
  /// weights, if the norm is not finite.
  bool looks_at(const DeferredScalar& norm) const {
    return looks_ || !norm.is_deferred();
  }
  bool stops() const {
    return stops_;
  }

  /// The p-norm of the pager's settled gradients. It says nothing of gradients
  /// that are settled later.
  void set_norm(
      const sharding::Pager& pager,
      const DeferredScalar& norm,
      double p);
  /// Must be called when the settled gradients are multiplied.
  void forget_norm() {
    norm_.reset();
  }

  /// Looks at the settled gradients before a step applies them; with what is
  /// known of their norm, this needs no pass over them. Collective.
  sharding::NonfiniteGradients find(
      sharding::Pager& pager,
      ShardedOptimizer& optimizer);

  /// Of steps that could not be looked at before: waits until the accelerator
  /// has computed the norm of the last one. What earlier ones did to the
  /// weights shows in it.
  /// @throws NonfiniteGradientError if it is not finite.
  void check_last_step() const;

 private:
  bool looks_; ///< before every step
  bool stops_;
  std::optional<DeferredScalar> norm_;
  int64_t norm_reductions_ = 0; ///< PagerStatistics::reductions before it
  std::optional<DeferredScalar> last_norm_; ///< of the last step
};

} // namespace tessera::engine
