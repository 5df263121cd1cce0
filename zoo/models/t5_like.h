// SPDX-License-Identifier: Apache-2.0
#pragma once
// What T5 and those who followed it have in common.

#include "tessera/zoo/models/encoder_decoder.h"
#include "tessera/zoo/models/registry.h"

namespace tessera::zoo {

/// Fields that all of them have; the head is tied and not scaled.
EncoderDecoderConfig t5_like_config(const ConfigFields& fields);

using EncoderDecoderConfigOf =
    EncoderDecoderConfig (*)(const ConfigFields& fields);
using EncoderDecoderNamesOf = NameTable (*)();

MakeModel make_encoder_decoder(
    EncoderDecoderConfigOf config,
    EncoderDecoderNamesOf names,
    EncoderDecoderHead head);

} // namespace tessera::zoo
