// SPDX-License-Identifier: Apache-2.0
#pragma once
// Order between device streams, without waiting on the host.
//
// Everything here is for any device with streams; for the CPU, where what is
// issued is done, all of it does nothing.

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace tessera {

/// The current stream of `device`; null for the CPU.
std::optional<c10::Stream> current_stream(c10::Device device);

/// Points in the work of streams: what was issued to each of them before it
/// was marked. Whoever waits for the marks comes after all of that. Cheap to
/// copy; the events come from a pool and go back to it with the last copy.
class StreamMarks {
 public:
  /// Marks what has been issued to `stream` so far.
  void add(const c10::Stream& stream);
  void add(const StreamMarks& others);

  /// Makes what is issued to `stream` from now on wait; not the host.
  void block(const c10::Stream& stream) const;
  /// As above for the current stream of `device`, if it has streams.
  void block_current(c10::Device device) const;

  bool empty() const {
    return events_.empty();
  }

 private:
  std::vector<std::shared_ptr<c10::Event>> events_;
};

/// Marks the current stream of `device`; empty for the CPU.
StreamMarks mark_current(c10::Device device);

/// The streams on which something was used, each once.
class StreamSet {
 public:
  /// @return true when `stream` is new.
  bool insert(const c10::Stream& stream);

  /// True when `stream` was the last one inserted, or any other.
  bool contains(const c10::Stream& stream) const;

  /// Marks all of them.
  StreamMarks mark() const;

  /// Makes all of them wait for `marks`.
  void block(const StreamMarks& marks) const;

  const std::vector<c10::Stream>& streams() const {
    return streams_;
  }
  void clear() {
    streams_.clear();
  }

 private:
  std::vector<c10::Stream> streams_;
};

} // namespace tessera
