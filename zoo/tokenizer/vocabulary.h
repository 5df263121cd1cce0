// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Vocabulary` maps tokens to ids and back.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::zoo {

/// A one-to-one map between tokens (UTF-8) and ids 0 .. size - 1.
class Vocabulary {
 public:
  /// Takes (token, id) pairs in any order.
  /// @param origin their source, for messages.
  /// @throws Error if there are none, if a token is empty or repeated, or if
  ///     the ids are not 0 .. size - 1.
  Vocabulary(
      std::vector<std::pair<std::string, std::int64_t>> tokens,
      const std::string& origin);

  /// Reads a vocab.txt: one token per line; the id is the line number, from 0.
  /// @throws Error as the constructor, naming the line.
  static Vocabulary from_vocab_file(const std::filesystem::path& path);

  /// The token's id, or -1.
  std::int64_t find(std::string_view token) const;

  /// @throws Error if the id is not in 0 .. size() - 1.
  const std::string& token(std::int64_t id) const;

  std::int64_t size() const {
    return static_cast<std::int64_t>(tokens_.size());
  }

  /// Length of the longest token in bytes.
  std::size_t longest_token_bytes() const {
    return longest_token_bytes_;
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> ids_;
  std::size_t longest_token_bytes_ = 0;
};

} // namespace tessera::zoo
