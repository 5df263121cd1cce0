// SPDX-License-Identifier: Apache-2.0
#pragma once
// What CPM-1 and CPM-2 have in common in ModelCenter.

#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

namespace tessera::zoo {

/// T5's fields; always gated, no dropout of embeddings, of inner features and
/// of what comes out, and one deviation for fresh weights of all layers.
EncoderDecoderConfig cpm_like_config(const ConfigFields& fields);

} // namespace tessera::zoo
