// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration and names that LLaMA and its successors share.

#include "tessera/zoo/models/families.h"

namespace tessera::zoo {

/// What a family uses for fields that config.json lacks.
struct LlamaLikeDefaults {
  int64_t max_positions = 32768;
  double norm_eps = 1e-6;
  /// nullopt: as many as `num_attention_heads`, which is also what null means.
  std::optional<int64_t> kv_heads = {};
  /// nullopt: `hidden_size` over the heads, which is also what null means.
  std::optional<int64_t> head_features = {};
  std::optional<int64_t> padding_token = {};
};

/// Reads the fields that they share: RMSNorm, rotary positions (halves),
/// grouped-query attention, gated feed-forward, no biases.
DecoderConfig llama_like_config(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults);

/// The same, with rotary positions for a fraction of each head's features.
DecoderConfig llama_like_config(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults,
    double rotary_share);

/// Sets the attention biases of all layers; those of queries, keys and values
/// together.
void set_attention_bias(
    DecoderConfig& decoder,
    bool query_key_value,
    bool output);

/// Adds norms of each head's queries and keys to all layers, as in Qwen3.
void add_query_key_norms(DecoderConfig& decoder);
NameTable with_query_key_norms(NameTable table);

/// Whether a layer has windowed attention, given `max_window_layers`.
using IsLocal = bool (*)(size_t layer, size_t most);

/// Qwen's rule: the layers from `max_window_layers` on.
inline bool is_behind(size_t layer, size_t most) {
  return layer >= most;
}

/// Enables windowed attention if `use_sliding_window` is true: in the layers
/// that `layer_types` names or, if the file has none, that `is_local` selects.
void read_windows(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    IsLocal is_local = is_behind);

/// The names of attention, norms and embeddings, and with `feed_forward` of the
/// dense feed-forward layers.
NameTable llama_like_names(bool feed_forward = true);

} // namespace tessera::zoo
