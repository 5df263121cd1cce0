// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/refused_allocation.h"

namespace tessera::runtime {

namespace {

thread_local int refusals = 0;

} // namespace

RefuseAllocations::RefuseAllocations() {
  ++refusals;
}

RefuseAllocations::~RefuseAllocations() {
  --refusals;
}

bool refuses_allocations() {
  return refusals > 0;
}

} // namespace tessera::runtime
