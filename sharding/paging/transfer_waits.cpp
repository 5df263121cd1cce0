// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/paging/transfer_waits.h"

#include "tessera/runtime/profile/span_recorder.h"

#include <utility>

namespace tessera {

std::vector<TransferWaits::Wait> TransferWaits::take() {
  return std::exchange(waits_, {});
}

bool TransferWaits::is_traced() {
  return runtime::SpanRecorder::current() != nullptr;
}

void TransferWaits::open() {
  if (is_traced()) {
    span_ = std::make_shared<runtime::TraceSpan>(
        runtime::TraceLane::kWaits, "wait for a transfer", device_);
  }
  opened_ = runtime::StreamTime::now(device_);
  is_open_ = true;
}

void TransferWaits::close() noexcept {
  is_open_ = false;
  span_.reset();
  if (!is_noting_) {
    return;
  }
  try {
    waits_.push_back({opened_, runtime::StreamTime::now(device_)});
  } catch (...) {
    // The device has failed; its next user gets the error.
  }
}

} // namespace tessera
