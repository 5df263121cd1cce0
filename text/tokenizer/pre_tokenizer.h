// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PreTokenizer` divides a text into words, inside which a model finds tokens;
// `read_pre_tokenizer()` makes one of a tokenizer.json.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/aligned_text.h"

#include <memory>

namespace tessera::text {

/// Immutable; may be used from several threads at once.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(AlignedText& text) const = 0;
  /// Whether the model after it sees bytes where the `tokenizers` library has
  /// one printable character for each byte.
  virtual bool makes_bytes() const {
    return false;
  }
};

/// The pre-tokenizer that `section` describes, with the fields and the results
/// of the `tokenizers` library: BertPreTokenizer, ByteLevel,
/// CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, Sequence,
/// Split, UnicodeScripts, Whitespace, WhitespaceSplit.
/// @throws tessera::Error on another type or a value that does not fit it.
std::unique_ptr<const PreTokenizer> read_pre_tokenizer(
    const runtime::JsonValue& section);

} // namespace tessera::text
