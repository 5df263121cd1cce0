// SPDX-License-Identifier: Apache-2.0
#pragma once
// cpm_like_config() and cpm_family(): what CPM-1, CPM-2 and CPM-3 share in
// ModelCenter.

#include "tessera/zoo/models/cpm_model.h"
#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>

namespace tessera::zoo {

/// What the fields are where config.json lacks them.
struct CpmLikeDefaults {
  RelativeBuckets buckets;
  bool length_scale = false; ///< products of weights are divided by a root
  bool attn_scale = false; ///< attention scores are divided by a root
  bool is_tied = false; ///< `tie_word_embeddings`
};

/// T5's fields, `length_scale` and `attn_scale`; always gated, without dropout
/// of embeddings, inner features and the final output, and with one standard
/// deviation for the initial weights of all layers.
EncoderDecoderConfig cpm_like_config(
    const ConfigFields& fields,
    const CpmLikeDefaults& defaults = {});

/// The same for a model with one half; with length_scale its embeddings are
/// scaled as well, unlike CPM-2's.
CpmConfig cpm_config(
    const ConfigFields& fields,
    const CpmLikeDefaults& defaults = {});

/// A family of models with one half, `<stem>ForLM` and `<stem>`, with
/// ModelCenter's names. @param name of the family, also its names' prefix.
ModelFamily cpm_family(
    const std::string& name,
    const std::string& stem,
    CpmConfig (*config)(const ConfigFields& fields));

} // namespace tessera::zoo
