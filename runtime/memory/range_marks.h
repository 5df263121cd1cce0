// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which streams may still be at work on which part of a buffer.

#include "tessera/runtime/memory/stream_marks.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// Marks per range of bytes. A range's next user waits for the marks of all it
/// overlaps, and then leaves its own there.
class RangeMarks {
 public:
  /// Replaces what is known of [begin, end) by `marks`. Whoever left them has
  /// waited for what was there before.
  void leave(int64_t begin, int64_t end, const StreamMarks& marks);

  /// The marks of everything that overlaps [begin, end).
  StreamMarks marks_of(int64_t begin, int64_t end) const;

 private:
  struct Range {
    int64_t begin;
    int64_t end;
    StreamMarks marks;
  };
  std::vector<Range> ranges_; ///< disjoint, in no order
};

} // namespace tessera
