// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/flat_layout.h"

#include "tessera/runtime/core/round_up.h"

#include <algorithm>

namespace tessera::runtime {

FlatLayout::FlatLayout(
    const std::vector<int64_t>& numels,
    int64_t alignment,
    int shards)
    : shards_(shards) {
  int64_t end = 0;
  offsets_.reserve(numels.size());
  for (const int64_t numel : numels) {
    offsets_.push_back(end);
    end = round_up(end + numel, alignment);
  }
  end = std::max(end, int64_t{1});
  shard_numel_ = round_up((end + shards - 1) / shards, alignment);
}

std::vector<FlatSegment> segments_of_shard(
    std::span<const FlatSpan> parameters,
    FlatSpan shard) {
  std::vector<FlatSegment> segments;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = std::max(parameters[i].begin, shard.begin);
    const int64_t end = std::min(parameters[i].end(), shard.end());
    if (begin < end) {
      segments.push_back({i, begin - shard.begin, end - begin});
    }
  }
  return segments;
}

std::vector<FlatSpan> gaps_between(
    std::span<const FlatSpan> spans,
    int64_t numel) {
  std::vector<FlatSpan> ordered(spans.begin(), spans.end());
  std::sort(ordered.begin(), ordered.end(), [](auto& a, auto& b) {
    return a.begin < b.begin;
  });
  std::vector<FlatSpan> gaps;
  int64_t end = 0;
  for (const FlatSpan& span : ordered) {
    if (span.begin > end) {
      gaps.push_back({end, span.begin - end});
    }
    // An empty span, or one within the one before it, ends before that.
    end = std::max(end, span.end());
  }
  if (numel > end) {
    gaps.push_back({end, numel - end});
  }
  return gaps;
}

} // namespace tessera::runtime
