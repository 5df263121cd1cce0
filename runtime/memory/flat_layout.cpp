// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/flat_layout.h"

#include <algorithm>

namespace tessera::runtime {

namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

} // namespace

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
  shard_numel_ = round_up((end + shards - 1) / shards, alignment);
}

std::vector<FlatRun> runs_of_shard(
    std::span<const FlatSpan> parameters,
    FlatSpan shard) {
  std::vector<FlatRun> runs;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t begin = std::max(parameters[i].begin, shard.begin);
    const int64_t end = std::min(parameters[i].end(), shard.end());
    if (begin < end) {
      runs.push_back({i, begin - shard.begin, end - begin});
    }
  }
  return runs;
}

} // namespace tessera::runtime
