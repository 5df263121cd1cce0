// SPDX-License-Identifier: Apache-2.0
#pragma once
// `StreamMarks` orders work on device streams without blocking the host. It
// supports any device with streams; on the CPU, where work is done when it is
// issued, everything here does nothing.

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

namespace tessera::runtime {

/// The current stream of `device`; null for the CPU.
std::optional<c10::Stream> current_stream(c10::Device device);

/// Points in the work of streams. To wait for the marks is to run after
/// everything that was issued to each stream before it was marked. Cheap to
/// copy; the events come from a pool and return to it with the last copy.
class StreamMarks {
 public:
  /// Marks the work issued to `stream` so far.
  void add(const c10::Stream& stream);
  void add(const StreamMarks& others);

  /// Makes work issued to `stream` from now on wait for the marks. Does not
  /// block the host.
  void block(const c10::Stream& stream) const;
  /// As above, for the current stream of `device`, if it has streams.
  void block_current(c10::Device device) const;

  bool empty() const {
    return events_.empty();
  }

 private:
  std::vector<std::shared_ptr<c10::Event>> events_;
};

/// Marks the current stream of `device`; empty for the CPU.
StreamMarks mark_current(c10::Device device);

/// The set of streams on which something was used.
class StreamSet {
 public:
  /// @return true when `stream` is new.
  bool insert(const c10::Stream& stream);

  /// Whether `stream` was inserted; fastest for the last one inserted.
  bool contains(const c10::Stream& stream) const;

  /// Marks all streams.
  StreamMarks mark() const;

  /// Makes all streams wait for `marks`.
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

} // namespace tessera::runtime
