// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/streams/stream_time.h"

#include "tessera/runtime/streams/stream_marks.h"

namespace tessera::runtime {

StreamTime StreamTime::now(c10::Device device) {
  StreamTime time;
  if (const auto stream = current_stream(device)) {
    // Timed events cannot come from the pool, whose events have no timers.
    time.event_ = std::make_shared<c10::Event>(
        device.type(), c10::EventFlag::BACKEND_DEFAULT);
    time.event_->record(*stream);
  } else {
    time.host_ = std::chrono::steady_clock::now();
  }
  return time;
}

double StreamTime::seconds_since(const StreamTime& earlier) const {
  if (event_ == nullptr) {
    return std::chrono::duration<double>(host_ - earlier.host_).count();
  }
  earlier.event_->synchronize();
  event_->synchronize();
  return earlier.event_->elapsedTime(*event_) * 1e-3;
}

} // namespace tessera::runtime
