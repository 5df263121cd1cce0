// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/transfer_waits.h"

#include <utility>

namespace tessera {

std::vector<TransferWaits::Wait> TransferWaits::take() {
  return std::exchange(waits_, {});
}

void TransferWaits::open() {
  opened_ = runtime::StreamTime::now(device_);
  is_open_ = true;
}

void TransferWaits::close() noexcept {
  is_open_ = false;
  try {
    waits_.push_back({opened_, runtime::StreamTime::now(device_)});
  } catch (...) {
    // The device has failed; its next user gets the error.
  }
}

} // namespace tessera
