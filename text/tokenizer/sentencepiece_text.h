// SPDX-License-Identifier: Apache-2.0
#pragma once
// `sentencepiece_normalizer()` and `sentencepiece_decoder()` rewrite texts and
// tokens as the `sentencepiece` library does.

#include "tessera/text/tokenizer/decoder.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/sentencepiece_model.h"

#include <memory>

namespace tessera::text {

/// Maps characters by the model's charsmap, except in pieces that users have
/// defined; takes out and escapes spaces, and adds the dummy prefix.
/// @throws tessera::Error if the charsmap is corrupt.
std::unique_ptr<const Normalizer> sentencepiece_normalizer(
    const SentencePieceModel& model);

/// Joins pieces to a text. Unlike the library it does not apply the
/// denormalizer of models that have one, which is refused.
/// @throws tessera::Error if the model has a denormalizer.
std::unique_ptr<const TokenDecoder> sentencepiece_decoder(
    const SentencePieceModel& model);

} // namespace tessera::text
