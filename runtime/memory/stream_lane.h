// SPDX-License-Identifier: Apache-2.0
#pragma once
// A stream beside the one that computes: for gathers, for reductions.

#include "tessera/runtime/memory/stream_marks.h"

#include <c10/core/StreamGuard.h>

#include <optional>

namespace tessera {

/// One stream of a device, of high priority. For the CPU there is no lane: what
/// is issued "to" it is issued where it stands, and all functions do nothing.
class StreamLane {
 public:
  explicit StreamLane(c10::Device device);

  /// False for the CPU.
  bool is_real() const {
    return stream_.has_value();
  }
  c10::Device device() const {
    return device_;
  }

  /// While it lives, the lane is its device's current stream. Current is a
  /// property of the thread: begin and end it on the same one.
  class Scope {
   public:
    explicit Scope(const StreamLane& lane) : guard_(lane.stream_) {}

   private:
    c10::OptionalStreamGuard guard_;
  };

  /// What is issued to the lane from now on comes after `marks`.
  void wait_for(const StreamMarks& marks) const {
    if (is_real()) {
      marks.block(*stream_);
    }
  }
  /// ... and after what was issued to the current stream.
  void follow_current() const {
    wait_for(mark_current(device_));
  }

  /// Marks what has been issued to the lane.
  StreamMarks mark() const;

  /// Blocks the host until that is done.
  void synchronize() const {
    if (is_real()) {
      stream_->synchronize();
    }
  }

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

} // namespace tessera
