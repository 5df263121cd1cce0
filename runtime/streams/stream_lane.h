// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StreamLane` is a stream next to the compute stream, for all-gathers,
// reduce-scatters or copies.

#include "tessera/runtime/streams/stream_marks.h"

#include <c10/core/StreamGuard.h>

#include <optional>

namespace tessera::runtime {

/// Whose turn it is on a device where work of several streams is ready.
enum class LanePriority {
  /// As compute streams have it, below which CUDA has none: for work that
  /// nothing waits for soon, such as optimizer updates.
  kLow,
  /// Before compute: for what compute waits for, such as all-gathers.
  kHigh,
};

/// One stream of a device. The CPU has no lane: work runs where it is issued,
/// and all functions do nothing.
class StreamLane {
 public:
  explicit StreamLane(
      c10::Device device,
      LanePriority priority = LanePriority::kHigh);

  /// False for the CPU.
  bool is_real() const {
    return stream_.has_value();
  }
  c10::Device device() const {
    return device_;
  }

  /// While it exists, the lane is the current stream of its device. The current
  /// stream is a property of the thread: begin and end the scope on the same
  /// one.
  class Scope {
   public:
    explicit Scope(const StreamLane& lane) : guard_(lane.stream_) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

  /// Work issued to the lane from now on runs after `marks`.
  void wait_for(const StreamMarks& marks) const {
    if (is_real()) {
      marks.block(*stream_);
    }
  }
  /// Work issued to the lane from now on runs after the work already issued to
  /// the current stream.
  void follow_current() const {
    wait_for(mark_current(device_));
  }

  /// Marks the work already issued to the lane.
  StreamMarks mark() const;

  /// For destructors, before memory is freed that the lane uses: the streams
  /// that get it back wait for the lane, not the host. These are the one that
  /// was current where the lane was made, and `others`. Logs if the device has
  /// failed.
  void wait_before_memory_is_freed(const StreamSet& others = {}) const noexcept;

  /// Blocks the host until the work issued to the lane is done.
  void synchronize() const {
    if (is_real()) {
      stream_->synchronize();
    }
  }

 private:
  c10::Device device_;
  std::optional<c10::Stream> home_; ///< current where it was made
  std::optional<c10::Stream> stream_;
};

} // namespace tessera::runtime
