// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/host_pinning.h"

namespace tessera::runtime {

namespace {

// One plugin per process; it registers before any memory is pinned.
HostPinning pinning_functions;

} // namespace

void register_host_pinning(const HostPinning& functions) {
  pinning_functions = functions;
}

const HostPinning& host_pinning() {
  return pinning_functions;
}

} // namespace tessera::runtime
