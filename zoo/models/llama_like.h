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

/// Layers that see a window, from `layer_types`, or `use_sliding_window` and
/// `max_window_layers` as Qwen has them.
void read_windows(const ConfigFields& fields, DecoderConfig& decoder);

/// Attention, norms and embeddings; `feed_forward` adds the dense one.
NameTable llama_like_names(bool feed_forward = true);

} // namespace tessera::zoo
