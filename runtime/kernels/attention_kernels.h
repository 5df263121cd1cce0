// SPDX-License-Identifier: Apache-2.0
#pragma once
// The kernels of [Note: pattern attention] for the CPU, one for each
// instruction set. Plain C++: the per-ISA sources include it.

#include "tessera/runtime/kernels/isa.h"
#include "tessera/runtime/kernels/low_precision.h"
#include "tessera/runtime/random/mixed_bits.h"

#include <cstdint>

namespace tessera::runtime {

/// Queries [begin, end) that are computed at a time, and the keys
/// [key_begin, key_end) that hold all that they see but for global keys.
struct AttentionTile {
  int64_t begin;
  int64_t end;
  int64_t key_begin;
  int64_t key_end;
};

/// Tiles [begin, end) of one batch row that no other tile shares keys with.
struct AttentionComponent {
  int64_t begin;
  int64_t end;
  int64_t key_begin;
  int64_t key_end;
};

/// Rows of one head of a tensor [batch, heads, tokens, features].
struct AttentionMatrix {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

/// Which weights are dropped: a function of the seed, the sequence's number in
/// the batch, and the numbers of head, query and key alone.
struct DroppedWeights {
  /// Of keyed_bits() below it a weight is dropped; 0: none is.
  uint32_t threshold = 0;
  float factor = 1; ///< of the others
  uint64_t seed = 0;
  int64_t first_head = 0; ///< number of the first query head in the layer
  int64_t layer_heads = 0;

  // Always inline: what is compiled for an instruction set is called there.

  /// The key of a query for keyed_bits().
  [[gnu::always_inline]] uint64_t key_of(
      int64_t batch,
      int64_t head,
      int64_t queries,
      int64_t query) const {
    const int64_t row =
        (batch * layer_heads + first_head + head) * queries + query;
    return mix_bits(seed ^ split_mix(static_cast<uint64_t>(row)));
  }

  /// What the weight of a key is multiplied with.
  [[gnu::always_inline]] float kept(uint64_t query_key, int64_t key) const {
    const uint32_t bits = keyed_bits(query_key, static_cast<uint32_t>(key));
    return bits < threshold ? 0 : factor;
  }
};

struct AttentionArguments {
  LowPrecision type; ///< of matrices; kNone: float32
  int64_t group; ///< query heads that share a key head
  int64_t heads;
  int64_t queries;
  int64_t features;
  int64_t value_features;
  float scale;
  AttentionMatrix query;
  AttentionMatrix key;
  AttentionMatrix value;
  AttentionMatrix out;
  float* log_sums; ///< [batch, heads, queries]; written by forward
  DroppedWeights dropped;
  // Of backward:
  AttentionMatrix gradient; ///< of out
  AttentionMatrix query_gradient;
  AttentionMatrix key_gradient;
  AttentionMatrix value_gradient;
};

/// What the queries of one batch row see.
struct AttentionRow {
  const int32_t* first; ///< [queries]
  const int32_t* end; ///< [queries]
  const uint8_t* seen; ///< [keys], 0 where no query sees it; null: all
  const uint8_t* global; ///< [keys], seen by all queries; null: none
};

/// One head of keys and the component of a batch row.
struct AttentionUnit {
  int64_t batch;
  int64_t key_head;
  AttentionRow row;
  AttentionComponent component;
  const AttentionTile* tiles;
};

struct AttentionKernel {
  void (*forward)(
      const AttentionArguments& all,
      const AttentionUnit& unit,
      float* scratch);
  void (*backward)(
      const AttentionArguments& all,
      const AttentionUnit& unit,
      float* scratch);
};

inline constexpr int64_t kAttentionRows = 64; ///< queries of a tile, at most
inline constexpr int64_t kAttentionKeys = 128; ///< keys of a block, at most
inline constexpr int64_t kAttentionPanel = 16; ///< columns

/// Rounded up to panels.
constexpr int64_t attention_padded(int64_t columns) {
  return (columns + kAttentionPanel - 1) / kAttentionPanel * kAttentionPanel;
}

/// Floats that forward needs for `keys` of a component.
constexpr int64_t attention_scratch(
    int64_t keys,
    int64_t features,
    int64_t value_features) {
  const int64_t columns = attention_padded(keys);
  const int64_t wide =
      attention_padded(features) + attention_padded(value_features);
  return columns * wide + kAttentionRows * (wide + kAttentionKeys + 2);
}

/// And backward.
constexpr int64_t attention_backward_scratch(
    int64_t keys,
    int64_t features,
    int64_t value_features) {
  const int64_t columns = attention_padded(keys);
  const int64_t wide = attention_padded(features);
  const int64_t values = attention_padded(value_features);
  return columns * (3 * wide + 2 * values) +
         kAttentionRows * (2 * wide + values + 2 * kAttentionKeys + 2);
}

extern const AttentionKernel kAttentionPortable;
extern const AttentionKernel kAttentionAvx2;
extern const AttentionKernel kAttentionAvx512;

/// @throws tessera::Error if `isa` is not available.
const AttentionKernel& attention_kernel(Isa isa);

} // namespace tessera::runtime
