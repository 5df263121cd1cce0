// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration and names that LLaMA and its successors share.

#include "tessera/zoo/models/families.h"

#include <functional>

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
  double deviation = 0.02;
  double attention_dropout = 0;
  bool tied_head = false;
  NormKind norm = NormKind::kRmsNorm;
  const char* norm_eps_field = "rms_norm_eps";
  const char* activation_field = "hidden_act";
  const char* activation = "silu";
  bool gated = true;
  double rotary_base = 10000;
  /// Rotated features of each head, where the file has no
  /// `partial_rotary_factor`; nullopt: all, and another factor is refused.
  std::optional<double> rotary_share = {};
};

/// Reads the fields that they share: RMSNorm, rotary positions (halves),
/// grouped-query attention, gated feed-forward, no biases.
DecoderConfig llama_like_config(
    const ConfigFields& fields,
    const LlamaLikeDefaults& defaults);

/// Calls change(layer) for all layers.
template <typename Change>
void for_layers(DecoderConfig& decoder, const Change& change) {
  for (TransformerLayerOptions& layer : decoder.layers) {
    change(layer);
  }
}

/// Sets the attention biases of all layers; those of queries, keys and values
/// together.
void set_attention_bias(
    DecoderConfig& decoder,
    bool query_key_value,
    bool output);

/// Sets the biases of all layers from `attention_bias` and `mlp_bias`.
void read_biases(const ConfigFields& fields, DecoderConfig& decoder);

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

/// Enables windowed attention of `sliding_window` tokens in the layers that
/// `layer_types` names or, without it, that `is_local` selects.
/// @param otherwise the window if the file has none; nullopt: no windows, which
///     is also what null means.
/// @return whether there are windows.
bool read_layer_types(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    std::optional<int64_t> otherwise,
    const std::function<bool(size_t layer)>& is_local);

/// Reads rotary positions that differ between layers with and without windows:
/// `rope_parameters` has a section for each kind.
/// @param local_base where the file has none for layers with windows.
void read_local_rotary(
    const ConfigFields& fields,
    DecoderConfig& decoder,
    double base,
    double local_base);

enum class FeedForwardNames {
  kNone,
  kPlain, ///< up_proj and down_proj
  kGated, ///< and gate_proj
};

/// The names of attention, norms and embeddings, and of dense feed-forward
/// layers.
NameTable llama_like_names(
    FeedForwardNames feed_forward = FeedForwardNames::kGated);

/// The same with NormPlacement::kBranch and norms of queries and keys.
NameTable branch_norm_names();

} // namespace tessera::zoo
