// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/token_file.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <system_error>

namespace tessera::zoo {

namespace {

at::Tensor mapped(const std::filesystem::path& path, TokenType type) {
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  TESSERA_CHECK(
      !code,
      "cannot read the tokens of '{}': {}",
      path.string(),
      code.message());
  const auto width = type == TokenType::kUint16 ? 2U : 4U;
  TESSERA_CHECK(
      bytes > 0 && bytes % width == 0,
      "'{}' has {} bytes, which is not a multiple of the token size, {} bytes; is data.token_type right?",
      path.string(),
      bytes,
      width);
  return torch::from_file(
      path.string(),
      /*shared=*/false,
      static_cast<int64_t>(bytes / width),
      torch::dtype(width == 2 ? torch::kInt16 : torch::kInt32));
}

} // namespace

TokenFile::TokenFile(const std::filesystem::path& path, TokenType type)
    : path_(path), type_(type), tokens_(mapped(path, type)) {}

at::Tensor TokenFile::read(int64_t begin, int64_t count) const {
  TESSERA_CHECK(
      begin >= 0 && begin <= size() && count >= 0 && count <= size() - begin,
      "{} tokens starting at {} are not in '{}', which has {}",
      count,
      begin,
      path_.string(),
      size());
  const at::Tensor tokens = tokens_.narrow(0, begin, count).to(torch::kInt64);
  // uint16 is mapped as int16.
  return type_ == TokenType::kUint16 ? tokens.bitwise_and(0xffff) : tokens;
}

} // namespace tessera::zoo
