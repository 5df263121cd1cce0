// SPDX-License-Identifier: Apache-2.0
#pragma once
// What LLaMA and those who followed it have in common.

#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

/// RMSNorm, rotary halves, grouped queries, gated feed-forward, no biases;
/// fields that all of them have are read.
DecoderConfig llama_like_config(const ConfigFields& fields);

/// The same, with rotary positions for a share of each head's features.
DecoderConfig llama_like_config(
    const ConfigFields& fields,
    double rotary_share);

/// Biases of attention in all layers, of queries, keys and values together.
void set_attention_bias(
    DecoderConfig& decoder,
    bool query_key_value,
    bool output);

/// Norms of each head's queries and keys, as Qwen3 has them, in all layers.
void add_query_key_norms(DecoderConfig& decoder);
NameTable with_query_key_norms(NameTable table);

/// Whether a layer sees a window only, given `max_window_layers`.
using IsLocal = bool (*)(size_t layer, size_t most);

/// As Qwen has them: the layers from `max_window_layers` on.
inline bool is_behind(size_t layer, size_t most) {
  return layer >= most;
}

/// Layers that see a window, where `use_sliding_window` is true: those of
/// `layer_types`, or by `is_local` where a file has none.
void read_windows(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    IsLocal is_local = is_behind);

/// Attention, norms and embeddings; `feed_forward` adds the dense one.
NameTable llama_like_names(bool feed_forward = true);

} // namespace tessera::zoo
