// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Vocabulary` maps tokens to ids and back.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text {

/// A one-to-one map between tokens (UTF-8) and ids below 2^31. Ids may be left
/// out.
class Vocabulary {
 public:
  /// Takes (token, id) pairs in any order.
  /// @param origin their source, for messages.
  /// @throws Error if there are none, if a token or an id is repeated or an id
  ///     out of range.
  Vocabulary(
      std::vector<std::pair<std::string, int64_t>> tokens,
      const std::string& origin);

  /// Reads a vocab.txt: one token per line; the id is the line number, from 0.
  /// @throws Error as the constructor, or if a line is empty, naming the line.
  static Vocabulary from_vocab_file(const std::filesystem::path& path);

  std::optional<uint32_t> find(std::string_view token) const;

  /// Empty: no token has the id.
  const std::string& token(uint32_t id) const;

  /// The largest id + 1.
  uint32_t size() const {
    return entries_.back().id + 1;
  }
  /// Of tokens; less than size() if ids are left out.
  uint32_t count() const {
    return static_cast<uint32_t>(entries_.size());
  }

  /// Length of the longest token in bytes.
  size_t longest_token_bytes() const {
    return longest_token_bytes_;
  }

 private:
  struct Entry {
    std::string token;
    uint32_t id = 0;
  };
  /// Of an open-addressing hash table over entries_.
  struct Slot {
    uint32_t hash = 0; ///< upper half
    uint32_t entry = kFree;
  };
  static constexpr uint32_t kFree = 0xffffffff;

  std::vector<Entry> entries_; ///< by id
  std::vector<Slot> slots_; ///< a power of two
  size_t longest_token_bytes_ = 0;
};

} // namespace tessera::text
