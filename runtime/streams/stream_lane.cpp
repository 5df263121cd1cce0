// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/streams/stream_lane.h"

#include "tessera/runtime/core/log.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

namespace tessera::runtime {

StreamLane::StreamLane(c10::Device device, LanePriority priority)
    : device_(device), home_(current_stream(device)) {
  if (!device.is_cpu()) {
    stream_ =
        c10::impl::getDeviceGuardImpl(device.type())
            ->getStreamFromGlobalPool(device, priority == LanePriority::kHigh);
  }
}

StreamMarks StreamLane::mark() const {
  StreamMarks marks;
  if (stream_) {
    marks.add(*stream_);
  }
  return marks;
}

void StreamLane::wait_before_memory_is_freed(
    const StreamSet& others) const noexcept {
  if (!is_real()) {
    return;
  }
  try {
    const StreamMarks done = mark();
    done.block(*home_);
    others.block(done);
  } catch (const std::exception& failure) {
    log_warning("the device failed: {}", failure.what());
  }
}

} // namespace tessera::runtime
