// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Normalizer` rewrites a text before it is divided into words;
// `read_normalizer()` makes one of a tokenizer.json.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/aligned_text.h"

#include <memory>
#include <vector>

namespace tessera::text {

/// Immutable; may be used from several threads at once.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(AlignedText& text) const = 0;
};

/// The normalizer that `section` describes, with the fields and the results of
/// the `tokenizers` library: BertNormalizer, NFC, NFD, NFKC, NFKD, Lowercase,
/// Strip, StripAccents, Nmt, Precompiled, Prepend, Replace, ByteLevel,
/// Sequence.
/// @throws tessera::Error on another type or a value that does not fit it.
std::unique_ptr<const Normalizer> read_normalizer(
    const runtime::JsonValue& section);

/// Several, one after the other.
std::unique_ptr<const Normalizer> normalizer_sequence(
    std::vector<std::unique_ptr<const Normalizer>> parts);

} // namespace tessera::text
