// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the work of a device takes, without waiting for it while it runs.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace tessera {

/// A moment in the work of a device: when its current stream has come to where
/// it was noted. For the CPU it is a moment of the host. Cheap to copy.
class StreamTime {
 public:
  /// Notes where the current stream of `device` is; does not block.
  static StreamTime now(c10::Device device);

  /// Seconds from `earlier`, a moment of the same device, to this one. Blocks
  /// until the device has come to both.
  double seconds_since(const StreamTime& earlier) const;

 private:
  std::chrono::steady_clock::time_point host_{};
  std::shared_ptr<c10::Event> event_; ///< null for the CPU
};

} // namespace tessera
