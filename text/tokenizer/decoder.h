// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenDecoder` makes text of tokens; `read_decoder()` makes one of a
// tokenizer.json.

#include "tessera/runtime/core/json_value.h"

#include <memory>
#include <string>
#include <vector>

namespace tessera::text {

/// Immutable; may be used from several threads at once.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Rewrites the parts of a text, which are tokens at first; the text is all
  /// of them. Parts need not be valid UTF-8.
  virtual void apply(std::vector<std::string>& parts) const = 0;
  /// Whether tokens that come after `parts` may change what those become,
  /// rather than follow it.
  /// @param parts the tokens so far: of the text, or after some is_context().
  virtual bool may_change(const std::vector<std::string>& /*parts*/) const {
    return false;
  }
  /// Whether what comes after `parts` becomes the same whichever tokens stand
  /// before them.
  /// @param parts at least one token, somewhere in a text.
  virtual bool is_context(const std::vector<std::string>& /*parts*/) const {
    return true;
  }
  /// Whether apply() makes one part of all.
  virtual bool joins() const {
    return false;
  }
  /// Whether may_change() and is_context() are right for parts that were
  /// joined before, too.
  virtual bool takes_joined() const {
    return false;
  }
};

/// Decodes, and then takes out the spaces before English punctuation and
/// contractions, also those between two tokens, as transformers does with
/// clean_up_tokenization_spaces.
/// @param decoder null: spaces between tokens.
std::unique_ptr<const TokenDecoder> cleaning_decoder(
    std::unique_ptr<const TokenDecoder> decoder);

/// The decoder that `section` describes, with the fields and the results of the
/// `tokenizers` library: BPEDecoder, ByteFallback, ByteLevel, CTC, Fuse,
/// Metaspace, Replace, Sequence, Strip, WordPiece.
/// @throws tessera::Error on another type or a value that does not fit it.
std::unique_ptr<const TokenDecoder> read_decoder(
    const runtime::JsonValue& section);

} // namespace tessera::text
