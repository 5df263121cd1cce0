// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/gather_scope.h"

#include "tessera/sharding/paging/gather_scopes.h"

namespace tessera {

GatherScope::GatherScope(
    sharding::GatherScopes& scopes,
    std::weak_ptr<const void> engine,
    std::vector<sharding::Page*> pages,
    bool writable,
    bool on_all_stages)
    : scopes_(&scopes),
      engine_(std::move(engine)),
      pages_(std::move(pages)),
      writable_(writable),
      on_all_stages_(on_all_stages) {
  scopes.pin(pages_, writable);
}

GatherScope::~GatherScope() {
  if (scopes_ != nullptr && !engine_.expired()) {
    scopes_->unpin(pages_, writable_, on_all_stages_);
  }
}

void GatherScope::commit() {
  sharding::GatherScopes* const scopes = std::exchange(scopes_, nullptr);
  if (scopes == nullptr || engine_.expired()) {
    return;
  }
  scopes->unpin(pages_, writable_, on_all_stages_);
  if (writable_) {
    scopes->check_written(on_all_stages_);
  }
}

GatherScope::GatherScope(GatherScope&& other) noexcept
    : scopes_(std::exchange(other.scopes_, nullptr)),
      engine_(std::move(other.engine_)),
      pages_(std::move(other.pages_)),
      writable_(other.writable_),
      on_all_stages_(other.on_all_stages_) {}

} // namespace tessera
