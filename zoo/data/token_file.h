// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenFile` reads a binary file of token ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

namespace tessera::zoo {

enum class TokenType {
  kUint8,
  kInt8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
};

/// "uint16".
const char* name_of(TokenType type);
int64_t bytes_of(TokenType type);

/// Where the tokens of a file lie, as its header or its index says.
struct TokenLayout {
  TokenType type = TokenType::kUint16;
  int64_t begin_bytes = 0; ///< a multiple of the token size
  int64_t count = 0;
};

/// Consecutive little-endian tokens. The file is memory-mapped: only what is
/// accessed is read. May be read from several threads at once.
class TokenFile {
 public:
  /// Tokens without a header, as in the .bin files of nanoGPT.
  /// @throws tessera::Error naming the file if it is missing, if its size is
  ///     not a multiple of the token size, or if it is text, a NumPy array or
  ///     another known format.
  TokenFile(const std::filesystem::path& path, TokenType type);

  /// @throws tessera::Error naming the file if it is missing or if its size is
  ///     not that of the layout.
  TokenFile(const std::filesystem::path& path, const TokenLayout& layout);

  int64_t size() const {
    return tokens_.numel();
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Tokens [begin, begin + count), int64.
  /// @throws tessera::Error if the range is outside of the file.
  at::Tensor read(int64_t begin, int64_t count) const;

  /// As read(), into memory of the caller.
  void read_into(int64_t begin, std::span<int64_t> tokens) const;

  /// The first of tokens [begin, begin + count) that is not in [0, vocab);
  /// nullopt if all are. Runs at the speed of the disk.
  /// @throws tessera::Error if the range is outside of the file.
  std::optional<int64_t> first_outside(
      int64_t begin,
      int64_t count,
      int64_t vocab) const;

  /// Checks a file whose type is not in a header.
  /// @throws tessera::Error if the type cannot hold the vocabulary, or if the
  ///     first tokens are those of a wider type: every second one is 0.
  void check_type(int64_t vocab) const;

  /// @throws tessera::Error with file, position and value of a token that
  ///     first_outside() found.
  [[noreturn]] void fail_outside(int64_t position, int64_t vocab) const;

 private:
  void check_inside(int64_t begin, int64_t count) const;

  std::filesystem::path path_;
  TokenType type_;
  at::Tensor tokens_; ///< integers of the width of type_, mapped
};

} // namespace tessera::zoo
