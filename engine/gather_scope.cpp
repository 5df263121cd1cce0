// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/gather_scope.h"

#include "tessera/sharding/paging/pager.h"

namespace tessera {

GatherScope::GatherScope(
    sharding::Pager& pager,
    std::weak_ptr<const void> engine,
    std::vector<size_t> groups,
    bool writable)
    : pager_(&pager),
      engine_(std::move(engine)),
      groups_(std::move(groups)),
      writable_(writable) {
  pager.pin(groups_, writable);
}

GatherScope::~GatherScope() {
  if (pager_ != nullptr && !engine_.expired()) {
    pager_->unpin(groups_, writable_);
  }
}

GatherScope::GatherScope(GatherScope&& other) noexcept
    : pager_(std::exchange(other.pager_, nullptr)),
      engine_(std::move(other.engine_)),
      groups_(std::move(other.groups_)),
      writable_(other.writable_) {}

} // namespace tessera
