// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Tokenizer::Parts` is a tokenizer as its files describe it. For tokenizer.cpp
// and the readers of files only.

#include "tessera/text/tokenizer/added_tokens.h"
#include "tessera/text/tokenizer/decoder.h"
#include "tessera/text/tokenizer/normalizer.h"
#include "tessera/text/tokenizer/post_processor.h"
#include "tessera/text/tokenizer/pre_tokenizer.h"
#include "tessera/text/tokenizer/token_model.h"
#include "tessera/text/tokenizer/tokenizer.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera::text {

struct Tokenizer::Parts {
  std::string origin; ///< for messages
  std::unique_ptr<const Normalizer> normalizer; ///< null: none
  std::unique_ptr<const PreTokenizer> pre_tokenizer; ///< null: none
  std::unique_ptr<const TokenModel> model;
  bool has_bpe_model = false; ///< pairs of tokens are merged
  std::unique_ptr<const PostProcessor> post_processor; ///< null: none
  std::unique_ptr<const TokenDecoder> decoder; ///< null: spaces between tokens
  std::map<int64_t, AddedToken> added;
  TokenizerSettings settings;

  /// Makes what follows of `added`, once it is complete.
  void prepare();

  /// Of the text as given, and of the normalized text; without special tokens
  /// in [1].
  std::unique_ptr<const AddedTokenFinder> raw[2];
  std::unique_ptr<const AddedTokenFinder> normalized[2];
  std::map<std::string, int64_t, std::less<>> added_ids;
  /// The texts that added tokens are decoded to: normalized, if they are.
  std::map<int64_t, std::string> decoded;

  /// Caches that no thread uses now.
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<TokenModelCache>> caches;
};

/// Builds tokenizers; what reads files fills `parts`.
class TokenizerReader {
 public:
  static Tokenizer tokenizer(std::shared_ptr<Tokenizer::Parts> parts);
  static std::shared_ptr<Tokenizer::Parts> make_parts() {
    return std::make_shared<Tokenizer::Parts>();
  }
  using Parts = Tokenizer::Parts;
  static const Parts& parts_of(const Tokenizer& tokenizer) {
    return *tokenizer.parts_;
  }
};

/// Fills the parts that a tokenizer.json describes.
void read_tokenizer_json(
    const nlohmann::json& document,
    const std::string& origin,
    TokenizerReader::Parts& parts);

/// An added token of a tokenizer.json.
AddedToken read_added_token(const runtime::JsonValue& item);

} // namespace tessera::text
