// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/stream_lane.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera::runtime {

StreamLane::StreamLane(c10::Device device) : device_(device) {
  if (!device.is_cpu()) {
    stream_ = c10::impl::getDeviceGuardImpl(device.type())
                  ->getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  }
}

StreamMarks StreamLane::mark() const {
  StreamMarks marks;
  if (stream_) {
    marks.add(*stream_);
  }
  return marks;
}

} // namespace tessera::runtime
