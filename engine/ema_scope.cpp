// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/ema_scope.h"

#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/paging/pager.h"

#include <exception>
#include <string>
#include <utility>

namespace tessera {

EmaScope::EmaScope(
    sharding::Pager& pager,
    engine::ShardedOptimizer& optimizer,
    std::weak_ptr<const void> engine)
    : pager_(&pager), optimizer_(&optimizer), engine_(std::move(engine)) {
  optimizer.exchange_averages(pager);
}

/// Does not throw, because it runs at the end of a scope: if the weights cannot
/// come back, the job ends.
EmaScope::~EmaScope() {
  if (pager_ == nullptr || engine_.expired()) {
    return;
  }
  try {
    optimizer_->exchange_averages(*pager_);
  } catch (const std::exception& error) {
    const std::string message =
        std::string("the weights are lost after Engine::ema(): ") +
        error.what();
    log_error("{}", message);
    for (const auto& page : pager_->pages()) {
      page->lose_values(message);
    }
    pager_->ranks().abandon(message);
  }
}

EmaScope::EmaScope(EmaScope&& other) noexcept
    : pager_(std::exchange(other.pager_, nullptr)),
      optimizer_(other.optimizer_),
      engine_(std::move(other.engine_)) {}

} // namespace tessera
