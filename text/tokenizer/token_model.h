// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenModel` divides words into tokens of a vocabulary; `read_token_model()`
// makes one of a tokenizer.json.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/aligned_text.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// A token of a word.
struct WordToken {
  uint32_t id = 0;
  ByteRange bytes; ///< of the word
};

/// What a thread keeps between words, such as those that it has seen; each
/// model has its own kind.
class TokenModelCache {
 public:
  virtual ~TokenModelCache() = default;
};

/// Immutable; may be used from several threads at once, each with a cache.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the tokens of `word`, which is not empty.
  /// @param cache made by this model.
  /// @throws tessera::Error if the vocabulary lacks an unknown token that is
  ///   needed.
  virtual void append(
      std::string_view word,
      TokenModelCache& cache,
      std::vector<WordToken>& tokens) const = 0;
  virtual std::unique_ptr<TokenModelCache> make_cache() const = 0;

  /// Of a token as files write it: of models of bytes, with one printable
  /// character for each byte.
  virtual std::optional<uint32_t> find(std::string_view token) const = 0;
  /// As files write it; empty: no token has the id.
  virtual const std::string& token(uint32_t id) const = 0;
  /// The largest id + 1.
  virtual uint32_t size() const = 0;
};

/// The model that `section` describes, with the fields and the results of the
/// `tokenizers` library: BPE, Unigram, WordLevel, WordPiece.
/// @param has_bytes words consist of bytes (PreTokenizer::makes_bytes()).
/// @throws tessera::Error on another type or a value that does not fit it.
std::unique_ptr<const TokenModel> read_token_model(
    const runtime::JsonValue& section,
    bool has_bytes);

} // namespace tessera::text
