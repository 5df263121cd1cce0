// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TokenFile` reads a binary file of token ids.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace tessera::zoo {

enum class TokenType { kUint16, kInt32 };

/// Consecutive little-endian tokens without a header, as in the .bin files of
/// nanoGPT, llm.c and Megatron. The file is memory-mapped: only what is
/// accessed is read.
class TokenFile {
 public:
  /// @throws tessera::Error naming the file if it is missing or its size is not
  ///     a multiple of the token size.
  TokenFile(const std::filesystem::path& path, TokenType type);

  int64_t size() const {
    return tokens_.numel();
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Tokens [begin, begin + count), int64.
  /// @throws tessera::Error if the range is outside of the file.
  at::Tensor read(int64_t begin, int64_t count) const;

 private:
  std::filesystem::path path_;
  TokenType type_;
  at::Tensor tokens_; ///< int16 or int32, mapped
};

} // namespace tessera::zoo
