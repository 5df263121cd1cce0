// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StreamTime` measures how long work on a device takes, without blocking while
// it runs.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace tessera::runtime {

/// The time at which the current stream of a device reaches the point where it
/// was recorded. On the CPU it is the host time of the call. Cheap to copy.
class StreamTime {
 public:
  /// Records the current point of the current stream of `device`; does not
  /// block.
  static StreamTime now(c10::Device device);

  /// Seconds from `earlier`, a time of the same device, to this one. Blocks
  /// until the device has reached both.
  double seconds_since(const StreamTime& earlier) const;

 private:
  std::chrono::steady_clock::time_point host_{};
  std::shared_ptr<c10::Event> event_; ///< null for the CPU
};

} // namespace tessera::runtime
