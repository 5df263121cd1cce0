// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CharacterMap` is sentencepiece's `precompiled_charsmap`: what texts are
// replaced by when they are normalized.

#include "tessera/text/tokenizer/aligned_text.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text {

/// The beginning of a text and what replaces it.
struct Mapped {
  size_t bytes = 0;
  std::string_view by;
};

/// Immutable; may be used from several threads at once.
class CharacterMap {
 public:
  /// @param bytes the size of a double array (little-endian, 4 bytes), the
  ///   double array in the format of Darts-clone, and the replacements, each
  ///   ended by a zero byte.
  /// @throws tessera::Error if they are cut off or no UTF-8.
  explicit CharacterMap(std::string_view bytes);

  /// Appends the text as the `tokenizers` library normalizes it: a grapheme of
  /// less than 6 bytes is replaced as a whole by what the shortest of its
  /// prefixes is mapped to; of others, and of those without such a prefix, the
  /// code points are mapped one by one. False: nothing was replaced.
  /// @throws tessera::Error if the map is corrupt.
  bool append_mapped(std::string_view text, std::vector<Rewritten>& code_points)
      const;

  /// The longest prefix of `text` in the map, as `sentencepiece` looks for it.
  /// @throws tessera::Error if the map is corrupt.
  std::optional<Mapped> longest_prefix(std::string_view text) const {
    return search(text, Which::kLongest);
  }

 private:
  enum class Which { kShortest, kLongest };
  /// The shortest or longest prefix of `text` in the map.
  std::optional<Mapped> search(std::string_view text, Which which) const;
  /// What the shortest prefix of `text` in the map is replaced by.
  std::optional<std::string_view> find(std::string_view text) const;
  bool append_replaced(
      std::string_view text,
      std::vector<Rewritten>& code_points) const;
  uint32_t unit(size_t at) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
  std::array<bool, 128> replaces_ascii_{};
};

/// @throws tessera::Error, which names `place`, if `text` is no base64.
std::string decode_base64(std::string_view text, std::string_view place);

} // namespace tessera::text
