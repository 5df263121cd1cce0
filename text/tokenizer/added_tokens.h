// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AddedTokens` finds the tokens in a text that no model divides: special ones,
// and those that were added to a vocabulary.

#include "tessera/text/tokenizer/aligned_text.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

/// With the meaning of the `tokenizers` library's AddedToken.
struct AddedToken {
  std::string content;
  int64_t id = 0;
  bool is_special = false; ///< left out of decoded text on request
  bool is_single_word = false; ///< not inside a word
  bool strips_left = false; ///< takes white space before it
  bool strips_right = false; ///< takes white space after it
  bool is_normalized = false; ///< is looked for in the normalized text
};

/// A part of a text: an added token, or what lies between two.
struct TextPart {
  ByteRange bytes;
  std::optional<int64_t> id; ///< of the added token
  uint32_t spaces_before = 0; ///< bytes that it takes with it
  uint32_t spaces_after = 0;
};

/// Finds tokens in texts: the leftmost first, of those that begin at the same
/// place the longest.
class AddedTokenFinder {
 public:
  /// @param texts what is looked for, for each of `tokens`.
  AddedTokenFinder(
      std::vector<AddedToken> tokens,
      const std::vector<std::string>& texts);

  /// The parts of a text, in order; empty ones are left out.
  std::vector<TextPart> parts_of(std::string_view text) const;
  bool is_empty() const {
    return tokens_.empty();
  }

 private:
  struct Node {
    std::map<char, uint32_t> next;
    int32_t token = -1; ///< that ends here, in tokens_
  };

  /// The longest token at `at`; its index in tokens_ and its length.
  std::optional<std::pair<size_t, size_t>> match_at(
      std::string_view text,
      size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<bool> begins_; ///< by byte: whether some token begins with it
};

} // namespace tessera::text
