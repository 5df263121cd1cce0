// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of a vocabulary that objectives need: special tokens, and which
// tokens begin a word or end a sentence.

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/inputs/objective_options.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

namespace tessera::zoo {

/// The tokenizer of an objective: that of a folder or file, or with an empty
/// path that of the model's folder, if it has one.
std::optional<text::Tokenizer> objective_tokenizer(
    const std::filesystem::path& path,
    const std::filesystem::path& model_folder);

/// `tokens` with those that are not given from the tokenizer.
SpecialTokens completed(
    SpecialTokens tokens,
    const std::optional<text::Tokenizer>& tokenizer);

/// @param key in `data.special_tokens`.
/// @throws tessera::Error naming the key if the token is missing or not in the
///     vocabulary.
int64_t needed_token(
    const std::optional<int64_t>& token,
    const char* key,
    ObjectiveKind objective,
    int64_t vocab);

/// The ids of the sentinels in their order, at least `count`.
/// @throws tessera::Error if there are fewer.
std::vector<int64_t> sentinels_of(
    const SpecialTokens& tokens,
    const std::optional<text::Tokenizer>& tokenizer,
    int64_t count,
    int64_t vocab);

/// For each token of the vocabulary whether a sentence ends with it.
std::vector<bool> sentence_ends_of(
    const std::optional<text::Tokenizer>& tokenizer,
    const std::vector<int64_t>& more,
    int64_t vocab);

/// `WordTable` says which tokens belong to one word, by the marks of the
/// tokenizer's own.
class WordTable {
 public:
  /// @param words the file of a list of words; empty: none.
  /// @throws tessera::Error if the tokenizer does not mark words, or the file
  ///     cannot be read or has a line that is not UTF-8.
  WordTable(
      const text::Tokenizer& tokenizer,
      const std::filesystem::path& words);

  /// Writes for each token the place of the first token of its word.
  /// @param starts the places where a document, and so a word, begins.
  void number(
      std::span<const int64_t> tokens,
      const std::vector<int64_t>& starts,
      std::span<int64_t> firsts) const;

 private:
  struct Token {
    bool begins = true; ///< a word
    bool is_special = true;
    std::string chinese; ///< the text if all of it is Chinese characters
  };
  const Token& at(int64_t token) const;

  std::vector<Token> tokens_;
  std::unordered_set<std::string> words_;
  size_t longest_ = 0; ///< of words_, in bytes
};

} // namespace tessera::zoo
