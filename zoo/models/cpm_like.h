// SPDX-License-Identifier: Apache-2.0
#pragma once
// cpm_like_config() reads the configuration that CPM-1 and CPM-2 share in
// ModelCenter.

#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

namespace tessera::zoo {

/// T5's fields; always gated, without dropout of embeddings, inner features and
/// the final output, and with one standard deviation for the initial weights of
/// all layers.
EncoderDecoderConfig cpm_like_config(const ConfigFields& fields);

} // namespace tessera::zoo
