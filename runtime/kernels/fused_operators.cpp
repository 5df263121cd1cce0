// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/fused_operators.h"

#include <atomic>

namespace tessera::runtime {

namespace {

std::atomic<bool> serves_fused{true};

} // namespace

bool uses_fused_operators() {
  return serves_fused;
}

void use_fused_operators(bool use) {
  serves_fused = use;
}

} // namespace tessera::runtime
