// SPDX-License-Identifier: Apache-2.0
#pragma once
// Block-sparse attention: layouts of blocks, as masks and as attention
// functions.

#include "tessera/zoo/layers/attention_function.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::zoo {

/// Which blocks of keys each block of queries attends to.
struct BlockLayout {
  int64_t size = 0; ///< tokens in a block
  /// bool [1 or heads, query blocks, key blocks], on the CPU.
  at::Tensor seen;
};

/// BigBird's pattern: a window of blocks, global blocks and random ones
/// (arXiv:2007.14062).
struct BigBirdOptions {
  int64_t window = 3; ///< blocks centered on the query's own, inclusive: odd
  /// the first blocks attend to all and are attended to by all
  int64_t global = 1;
  int64_t random = 0; ///< random blocks per query block, drawn from `seed`
  uint64_t seed = 0;
};

/// The layout of `blocks` x `blocks` blocks.
/// @throws tessera::Error on an even window or negative numbers.
BlockLayout big_bird_layout(
    int64_t blocks,
    int64_t size,
    const BigBirdOptions& options = {});

/// A query attends to its own stripe of `stride` blocks, and to the last
/// `summary` blocks of every stripe (arXiv:1904.10509, "fixed").
/// @param causal excludes blocks after the query's own; within that block, the
///     call must be causal too.
/// @throws tessera::Error unless 1 <= summary <= stride.
BlockLayout fixed_layout(
    int64_t blocks,
    int64_t size,
    int64_t stride,
    int64_t summary = 1,
    bool causal = true);

/// The layout as a mask for any attention: bool [1, 1 or heads, length,
/// length].
/// @throws tessera::Error if the layout has too few blocks for the length.
at::Tensor block_mask(
    const BlockLayout& layout,
    int64_t length,
    const at::Device& device);

/// Attention that computes the visible blocks only, by calling `function` with
/// queries [B, rows, size, n] and their keys. Memory is linear in the number of
/// visible blocks. Masks, AttentionCall::causal and biases (masks that are
/// numbers) apply within them.
/// @param layout every block of queries must see at least one block; queries
///     and keys have at most as many tokens as its blocks.
/// @throws tessera::Error if that does not hold; in a call with drop_weights,
///     because the weights are not materialized.
AttentionFunction block_sparse_attention(
    const BlockLayout& layout,
    AttentionFunction function = fused_attention);

} // namespace tessera::zoo
