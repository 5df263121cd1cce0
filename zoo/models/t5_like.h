// SPDX-License-Identifier: Apache-2.0
#pragma once
// Configuration and construction that T5 and its successors share.

#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

#include <string>

namespace tessera::zoo {

/// Reads the fields that they share; the head is tied and not scaled.
/// @param activation `feed_forward_proj` where config.json lacks it.
EncoderDecoderConfig t5_like_config(
    const ConfigFields& fields,
    const std::string& activation = "relu");

using EncoderDecoderConfigOf =
    EncoderDecoderConfig (*)(const ConfigFields& fields);
using EncoderDecoderNamesOf = NameTable (*)();

MakeModel make_encoder_decoder(
    EncoderDecoderConfigOf config,
    EncoderDecoderNamesOf names,
    EncoderDecoderHead head);

} // namespace tessera::zoo
