// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WordLevel` is the token model of which each word is a token.

#include "tessera/text/tokenizer/cached_token_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class WordLevel : public CachedTokenModel {
 public:
  /// @param unk_token of words that the vocabulary lacks.
  /// @param has_bytes words consist of bytes.
  WordLevel(Vocabulary vocabulary, std::string unk_token, bool has_bytes);

 protected:
  std::unique_ptr<Scratch> make_scratch() const override;
  void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const override;

 private:
  std::string unk_token_;
  std::optional<uint32_t> unk_id_;
};

} // namespace tessera::text
