// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ContextLayout` determines which tokens of a sequence a context-parallel rank
// has.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

enum class ContextLayout {
  /// Rank r has slice r of n.
  kContiguous,
  /// Rank r has slices r and 2n-1-r of 2n. Under causal attention this balances
  /// the work, most of which kContiguous gives to the last rank.
  kZigzag,
};

/// A run of tokens that are consecutive both in the sequence and on their rank.
struct ContextSegment {
  int64_t first = 0; ///< index in the sequence
  int64_t offset = 0; ///< index among the rank's own tokens
  int64_t length = 0;

  bool operator==(const ContextSegment&) const = default;
};

/// Returns the tokens of one rank, ascending.
/// @param length of the whole sequence.
/// @throws tessera::Error when it is not a multiple of the number of ranks
///   (twice that for kZigzag).
std::vector<ContextSegment> context_segments(
    ContextLayout layout,
    int64_t length,
    int rank,
    int ranks);

/// Returns this rank's tokens along dimension `dim` of a tensor that is whole
/// on all ranks, such as token ids, positions or targets. Not collective: only
/// the rank's own tokens get a gradient.
at::Tensor take_context_part(
    const at::Tensor& full,
    int64_t dim,
    ContextLayout layout,
    int rank,
    int ranks);

/// Reorders the tokens of all ranks, concatenated by rank, into sequence order.
at::Tensor in_sequence_order(
    const at::Tensor& by_rank,
    int64_t dim,
    ContextLayout layout,
    int ranks);

/// The inverse of in_sequence_order().
at::Tensor in_rank_order(
    const at::Tensor& sequence,
    int64_t dim,
    ContextLayout layout,
    int ranks);

} // namespace tessera
