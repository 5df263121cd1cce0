// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RangeMarks` tracks which streams may still be using which part of a buffer.

#include "tessera/runtime/streams/stream_marks.h"

#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// Stream marks by range of bytes. The next user of a range waits for the marks
/// of all ranges that overlap it, then leaves its own marks.
class RangeMarks {
 public:
  /// Replaces the marks of [begin, end) by `marks`. Their owner must have
  /// waited for the marks that were there before.
  void leave(int64_t begin, int64_t end, const StreamMarks& marks);

  /// Marks of all ranges that overlap [begin, end).
  StreamMarks marks_of(int64_t begin, int64_t end) const;

 private:
  struct Range {
    int64_t begin;
    int64_t end;
    StreamMarks marks;
  };
  std::vector<Range> ranges_; ///< disjoint, unordered
};

} // namespace tessera::runtime
