// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FlatLayout` places tensors in a flat buffer that is sharded evenly over
// ranks. Plain arithmetic; all offsets and lengths count elements.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::runtime {

/// [begin, begin + numel) of a flat buffer.
struct FlatSpan {
  int64_t begin = 0;
  int64_t numel = 0;

  int64_t end() const {
    return begin + numel;
  }
};

/// The part of a parameter that lies in one rank's shard.
struct FlatSegment {
  size_t parameter = 0; ///< index into the given spans
  int64_t shard_offset = 0; ///< from the start of the shard
  int64_t numel = 0;
};

/// Tensors of the given lengths one after another, each start aligned, with
/// padding at the end so that every rank holds the same number of elements, at
/// least `alignment` of them: a buffer of tensors without elements is not
/// empty, so that collectives over it need no case of their own.
class FlatLayout {
 public:
  /// @param alignment in elements, at least 1.
  /// @param shards number of ranks, at least 1.
  FlatLayout(const std::vector<int64_t>& numels, int64_t alignment, int shards);

  /// Start of tensor `index`.
  int64_t offset(size_t index) const {
    return offsets_[index];
  }
  /// Length of the whole buffer, including padding.
  int64_t padded_numel() const {
    return shard_numel_ * shards_;
  }
  /// Length of each rank's shard.
  int64_t shard_numel() const {
    return shard_numel_;
  }
  /// The span of `rank`'s shard in the whole buffer.
  FlatSpan shard(int rank) const {
    return {rank * shard_numel_, shard_numel_};
  }

 private:
  std::vector<int64_t> offsets_;
  int64_t shard_numel_ = 0;
  int shards_ = 1;
};

/// The runs of one shard, in the order of `parameters`; parameters outside the
/// shard have no run.
std::vector<FlatSegment> segments_of_shard(
    std::span<const FlatSpan> parameters,
    FlatSpan shard);

/// What of [0, numel) lies in none of `spans`, in ascending order. Spans may be
/// empty, overlap or lie within each other, in any order.
std::vector<FlatSpan> gaps_between(
    std::span<const FlatSpan> spans,
    int64_t numel);

} // namespace tessera::runtime
