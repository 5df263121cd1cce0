// SPDX-License-Identifier: Apache-2.0
#include "tessera/offload/host_mirror.h"

#include <utility>

namespace tessera {

HostMirror::HostMirror(
    at::Tensor original,
    at::ScalarType dtype,
    MemoryLedger& ledger)
    : original_(std::move(original)),
      tensor_(ledger.allocate(
          MemoryPurpose::kOptimizerState,
          original_.numel(),
          dtype,
          at::kCPU)) {
  load();
}

void HostMirror::load() {
  tensor_.copy_(original_);
}

void HostMirror::store() {
  original_.copy_(tensor_);
}

} // namespace tessera
