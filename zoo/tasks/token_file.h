// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text as tokens in a file.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace tessera::zoo {

enum class TokenType { kUint16, kInt32 };

/// Tokens one behind the other, little-endian, without a header, as nanoGPT,
/// llm.c and Megatron's .bin files have them. Mapped: what is not looked at is
/// not read.
class TokenFile {
 public:
  /// @throws tessera::Error naming the file when it is missing, or not made of
  ///     whole tokens.
  TokenFile(const std::filesystem::path& path, TokenType type);

  int64_t size() const {
    return tokens_.numel();
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Tokens [begin, begin + count), int64.
  /// @throws tessera::Error when they are not there.
  at::Tensor read(int64_t begin, int64_t count) const;

 private:
  std::filesystem::path path_;
  TokenType type_;
  at::Tensor tokens_; ///< int16 or int32, mapped
};

} // namespace tessera::zoo
