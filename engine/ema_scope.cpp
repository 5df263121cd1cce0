// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/ema_scope.h"

#include "tessera/engine/optim/sharded_optimizer.h"
#include "tessera/runtime/core/log.h"
#include "tessera/sharding/paging/pager.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

/// The pages that gather scopes hold, one entry for each time.
std::vector<sharding::Page*> held_pages(const sharding::Pager& pager) {
  std::vector<sharding::Page*> held;
  for (const auto& page : pager.pages()) {
    held.insert(held.end(), static_cast<size_t>(page->pins.all), page.get());
  }
  return held;
}

} // namespace

EmaScope::EmaScope(
    sharding::Pager& pager,
    engine::ShardedOptimizer& optimizer,
    std::weak_ptr<const void> engine)
    : pager_(&pager), optimizer_(&optimizer), engine_(std::move(engine)) {
  optimizer.exchange_averages(pager);
}

/// Does not throw, because it runs at the end of a scope: if the weights cannot
/// come back, the job ends. Gather scopes that were opened meanwhile and have
/// not ended, none of them writable, have the weights then.
EmaScope::~EmaScope() {
  if (pager_ == nullptr || engine_.expired()) {
    return;
  }
  const std::vector<sharding::Page*> held = held_pages(*pager_);
  pager_->scopes().unpin(held, /*writable=*/false, /*on_all_stages=*/false);
  try {
    optimizer_->exchange_averages(*pager_);
    pager_->scopes().pin(held, /*writable=*/false);
  } catch (const std::exception& error) {
    const std::string message =
        std::string("the weights are lost after a scope of ema(): ") +
        error.what();
    log_error("{}", message);
    for (sharding::Page* const page : held) {
      ++page->pins.all; // which the scopes will end
    }
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
