// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/range_marks.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime {

void RangeMarks::leave(int64_t begin, int64_t end, const StreamMarks& marks) {
  std::vector<Range> kept;
  for (Range& range : ranges_) {
    if (range.end <= begin || range.begin >= end) {
      kept.push_back(std::move(range));
      continue;
    }
    if (range.begin < begin) {
      kept.push_back({range.begin, begin, range.marks});
    }
    if (range.end > end) {
      kept.push_back({end, range.end, range.marks});
    }
  }
  if (!marks.empty() && begin < end) {
    kept.push_back({begin, end, marks});
  }
  ranges_ = std::move(kept);
}

StreamMarks RangeMarks::marks_of(int64_t begin, int64_t end) const {
  StreamMarks all;
  for (const Range& range : ranges_) {
    if (std::max(range.begin, begin) < std::min(range.end, end)) {
      all.add(range.marks);
    }
  }
  return all;
}

} // namespace tessera::runtime
