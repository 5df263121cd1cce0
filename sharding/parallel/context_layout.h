// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tokens of a sequence a context-parallel rank has.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

enum class ContextLayout {
  /// Rank r has part r of n.
  kContiguous,
  /// Rank r has parts r and 2n-1-r of 2n: under causal attention all ranks then
  /// have the same work, where with kContiguous the last one has most of it.
  kZigzag,
};

/// Tokens that follow each other, in the sequence and on their rank.
struct ContextSegment {
  int64_t first = 0; ///< in the sequence
  int64_t offset = 0; ///< among the rank's own tokens
  int64_t length = 0;

  bool operator==(const ContextSegment&) const = default;
};

/// The tokens of one rank, ascending.
/// @param length of the whole sequence.
/// @throws tessera::Error when the ranks (for kZigzag twice the ranks) do not
///     divide it.
std::vector<ContextSegment> context_segments(
    ContextLayout layout,
    int64_t length,
    int rank,
    int ranks);

/// This rank's tokens of dimension `dim` of a tensor that all ranks have, such
/// as token ids, positions or targets. Not collective: a gradient reaches the
/// rank's own tokens only.
at::Tensor take_context_part(
    const at::Tensor& whole,
    int64_t dim,
    ContextLayout layout,
    int rank,
    int ranks);

/// Tokens of all ranks, one rank behind the other, to their order in the
/// sequence.
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
