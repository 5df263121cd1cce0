// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/refused_allocation.h"

#include <optional>

namespace tessera::runtime {

namespace {

thread_local std::optional<int> left_to_serve; ///< nothing: all are served

} // namespace

RefuseAllocations::RefuseAllocations(int served) {
  left_to_serve = served;
}

RefuseAllocations::~RefuseAllocations() {
  left_to_serve.reset();
}

bool refuses_allocation() {
  return left_to_serve && --*left_to_serve < 0;
}

} // namespace tessera::runtime
