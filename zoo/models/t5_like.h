// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration and construction that T5 and its successors share.

#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>

namespace tessera::zoo {

/// What the fields are where config.json lacks them.
struct T5LikeDefaults {
  std::string activation = "relu"; ///< `feed_forward_proj`
  RelativeBuckets buckets;
  double dropout = 0.1;
};

/// Reads the fields that they share; the head is tied and not scaled.
EncoderDecoderConfig t5_like_config(
    const ConfigFields& fields,
    const T5LikeDefaults& defaults = {});

using EncoderDecoderConfigOf =
    EncoderDecoderConfig (*)(const ConfigFields& fields);
using EncoderDecoderNamesOf = NameTable (*)();

MakeModel make_encoder_decoder(
    EncoderDecoderConfigOf config,
    EncoderDecoderNamesOf names,
    EncoderDecoderHead head);

} // namespace tessera::zoo
