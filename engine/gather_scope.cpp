// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/gather_scope.h"

#include "tessera/sharding/paging/pager.h"

namespace tessera {

GatherScope::GatherScope(
    sharding::Pager& pager,
    std::vector<size_t> groups,
    bool writable)
    : pager_(&pager), groups_(std::move(groups)), writable_(writable) {
  pager.pin(groups_, writable);
}

GatherScope::~GatherScope() {
  if (pager_ != nullptr) {
    pager_->unpin(groups_, writable_);
  }
}

GatherScope::GatherScope(GatherScope&& other) noexcept
    : pager_(std::exchange(other.pager_, nullptr)),
      groups_(std::move(other.groups_)),
      writable_(other.writable_) {}

} // namespace tessera
