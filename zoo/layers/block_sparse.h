// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attention of which only some blocks are computed: patterns of blocks, as
// masks and as attention functions.

#include "tessera/zoo/layers/attention_function.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::zoo {

/// Which blocks of keys the blocks of queries see.
struct BlockLayout {
  int64_t size = 0; ///< tokens in a block
  /// bool [1 or heads, blocks of queries, blocks of keys], on the CPU.
  at::Tensor seen;
};

/// Windows of blocks, blocks that see all and are seen by all, and random ones
/// (arXiv:2007.14062).
struct BigBirdOptions {
  int64_t window = 3; ///< blocks around a query's own, itself included: odd
  int64_t global = 1; ///< the first blocks
  int64_t random = 0; ///< more for each block of queries; drawn from `seed`
  uint64_t seed = 0;
};

/// Of `blocks` blocks of queries and of keys.
/// @throws tessera::Error on an even window or numbers below 0.
BlockLayout big_bird_layout(
    int64_t blocks,
    int64_t size,
    const BigBirdOptions& options = {});

/// A query sees its own stripe of `stride` blocks, and of every stripe the last
/// `summary` blocks (arXiv:1904.10509, "fixed").
/// @param causal only those up to the query's own block; for whole tokens the
///     call has to be causal too.
/// @throws tessera::Error unless 1 <= summary <= stride.
BlockLayout fixed_layout(
    int64_t blocks,
    int64_t size,
    int64_t stride,
    int64_t summary = 1,
    bool causal = true);

/// The same as a mask for any attention: bool [1, 1 or heads, length, length].
/// @throws tessera::Error when the layout has too few blocks for the length.
at::Tensor block_mask(
    const BlockLayout& layout,
    int64_t length,
    const at::Device& device);

/// Attention that computes the blocks that are seen, by another function: what
/// that does for queries [B, rows, size, n] and their keys. Memory grows with
/// the number of blocks. Masks and AttentionCall::causal hold within them; bias
/// as a mask that is a number does too.
/// @param layout every block of queries must see one; queries and keys have at
///     most as many tokens as its blocks.
/// @throws tessera::Error as above; in a call with drop_weights, which is about
///     weights that are not computed.
AttentionFunction block_sparse_attention(
    const BlockLayout& layout,
    AttentionFunction function = fused_attention);

} // namespace tessera::zoo
