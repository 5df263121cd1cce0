// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CachedTokenModel` is a token model that remembers the tokens of words; a
// kind of model says how it divides a word that is new.

#include "tessera/text/tokenizer/token_model.h"
#include "tessera/text/tokenizer/vocabulary.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

class CachedTokenModel : public TokenModel {
 public:
  void append(
      std::string_view word,
      TokenModelCache& cache,
      std::vector<WordToken>& tokens) const final;
  std::unique_ptr<TokenModelCache> make_cache() const final;

  std::optional<uint32_t> find(std::string_view token) const final {
    return vocabulary_.find(token);
  }
  const std::string& token(uint32_t id) const final {
    return vocabulary_.token(id);
  }
  uint32_t size() const final {
    return vocabulary_.size();
  }
  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }

 protected:
  struct Traits {
    /// Words consist of bytes. divide() is given them as the vocabulary writes
    /// them, a character for each.
    bool has_bytes = false;
    /// A word may be divided before each U+2581, the character for a space,
    /// that follows another character: no token contains the two, and no other
    /// rule has an effect across them.
    bool divides_at_spaces = false;
  };
  /// What divide() reuses between words, so that it need not allocate.
  struct Scratch {
    virtual ~Scratch() = default;
  };

  CachedTokenModel(Vocabulary&& vocabulary, Traits traits);

  virtual std::unique_ptr<Scratch> make_scratch() const = 0;
  /// Appends the tokens of a word, which is valid UTF-8 and not empty.
  /// @param scratch made by make_scratch().
  virtual void divide(
      std::string_view word,
      Scratch& scratch,
      std::vector<WordToken>& tokens) const = 0;

 private:
  struct Cache;

  void append_part(
      std::string_view word,
      Cache& cache,
      std::vector<WordToken>& tokens) const;
  void divide_bytes(
      std::string_view word,
      Cache& cache,
      std::vector<WordToken>& tokens) const;

  Vocabulary vocabulary_;
  Traits traits_;
};

/// Whether some token has a U+2581 right after another character.
bool has_inner_space(std::string_view token);

/// The tokens that write bytes, "<0x00>" to "<0xFF>"; nothing for one that the
/// vocabulary lacks.
std::vector<std::optional<uint32_t>> byte_tokens(const Vocabulary& vocabulary);

} // namespace tessera::text
