// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/step_guard.h"

#include "tessera/runtime/core/error.h"

#include <cmath>
#include <utility>

namespace tessera::engine {

std::string nonfinite_text(
    const sharding::NonfiniteGradients& found,
    int64_t step) {
  return formatted(
      "the gradient of {} is not finite in step {}",
      found.parameter.empty()
          ? std::string("a parameter of another part of the model")
          : "parameter '" + found.parameter + "'",
      step);
}

void StepGuard::set_norm(
    const sharding::Pager& pager,
    const DeferredScalar& norm,
    double p) {
  // Higher powers of finite numbers may be infinite.
  if (p <= 2 || std::isinf(p)) {
    norm_ = norm;
    norm_reductions_ = pager.statistics().reductions;
  }
}

sharding::NonfiniteGradients StepGuard::find(
    sharding::Pager& pager,
    ShardedOptimizer& optimizer) {
  std::optional<DeferredScalar> norm = std::exchange(norm_, std::nullopt);
  if (pager.statistics().reductions != norm_reductions_) {
    norm.reset(); // gradients have come since
  }
  if (norm ? !looks_at(*norm) : !looks_) {
    last_norm_ = norm;
    return {};
  }
  if (norm && std::isfinite(norm->value())) {
    return {};
  }
  return find_nonfinite_gradients(
      pager, optimizer.gradient_sums(pager.pages(), 2));
}

void StepGuard::check_last_step() const {
  if (last_norm_ && !std::isfinite(last_norm_->value())) {
    throw NonfiniteGradientError(
        formatted(
            "the norm of the gradients of the last step was {}, and the weights are lost",
            last_norm_->value()),
        "Load the last checkpoint; on_nonfinite=skip waits for the accelerator in every step and leaves such steps out.");
  }
}

} // namespace tessera::engine
