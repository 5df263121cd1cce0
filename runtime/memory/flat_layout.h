// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where things lie in a flat buffer that is divided evenly over ranks.
// Pure arithmetic; all offsets and lengths count elements.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// [begin, begin + numel) of a flat buffer.
struct FlatSpan {
  int64_t begin = 0;
  int64_t numel = 0;

  int64_t end() const {
    return begin + numel;
  }
};

/// The part of one parameter that lies in one rank's shard.
struct FlatRun {
  size_t parameter = 0; ///< index into the spans that were given
  int64_t shard_offset = 0; ///< from the start of the shard
  int64_t numel = 0;
};

/// Tensors of the given lengths laid one after the other, each start aligned,
/// padded at the end so that every rank holds the same number of elements.
class FlatLayout {
 public:
  /// @param alignment in elements, at least 1.
  /// @param shards number of ranks, at least 1.
  FlatLayout(const std::vector<int64_t>& numels, int64_t alignment, int shards);

  /// Where tensor `index` begins.
  int64_t offset(size_t index) const {
    return offsets_[index];
  }
  /// Length of the whole buffer, padding included.
  int64_t padded_numel() const {
    return shard_numel_ * shards_;
  }
  /// Length of each rank's shard.
  int64_t shard_numel() const {
    return shard_numel_;
  }
  /// The shard of `rank` in the whole buffer.
  FlatSpan shard(int rank) const {
    return {rank * shard_numel_, shard_numel_};
  }

 private:
  std::vector<int64_t> offsets_;
  int64_t shard_numel_ = 0;
  int shards_ = 1;
};

/// The runs of one shard, in the order of `parameters`; parameters outside the
/// shard have none.
std::vector<FlatRun> runs_of_shard(
    std::span<const FlatSpan> parameters,
    FlatSpan shard);

} // namespace tessera
