// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/token_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/data_format.h"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <system_error>

namespace tessera::zoo {

namespace {

/// @throws tessera::Error on a file that is known to be something else.
void check_is_token_file(const std::filesystem::path& path, TokenType type) {
  const DataFormat format = data_format_of(path);
  if (format == DataFormat::kUnknown) {
    return;
  }
  const char* const name = type == TokenType::kUint16 ? "uint16" : "int32";
  std::string command = unpack_command(format, path);
  if (format == DataFormat::kNumpy) {
    command = formatted(
        "python3 -c 'import numpy; numpy.load(\"{}\").astype(\"{}\").tofile(\"tokens.bin\")'",
        path.string(),
        name);
  } else if (format == DataFormat::kSafetensors) {
    command = formatted(
        "python3 -c 'from safetensors.numpy import load_file; load_file(\"{}\")[\"input_ids\"].astype(\"{}\").tofile(\"tokens.bin\")'",
        path.string(),
        name);
  } else if (format == DataFormat::kLlmC) {
    command = formatted("tail -c +1025 {} > tokens.bin", path.string());
  } else if (command.empty()) {
    command = formatted(
        "numpy.array(tokenizer(text)[\"input_ids\"], \"{}\").tofile(\"tokens.bin\") in Python, with the model's tokenizer of transformers",
        name);
  }
  TESSERA_FAIL(
      "'{}' is {}, not a token file: expected only token ids, as {} (data.token_type), one after another, without a header. Make one with: {}",
      path.string(),
      name_of(format),
      name,
      command);
}

/// The first of `count` values that is at least `bound`; `count` if none is.
/// Negative tokens are large as unsigned ones.
template <typename Unsigned>
int64_t first_at_least(const Unsigned* values, int64_t count, uint64_t bound) {
  constexpr int64_t kBlock = 1 << 16; // finds a maximum without branches
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    Unsigned largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, values[i]);
    }
    if (largest < bound) {
      continue;
    }
    return std::find_if(
               values + begin,
               values + end,
               [bound](Unsigned value) { return value >= bound; }) -
           values;
  }
  return count;
}

at::Tensor mapped(const std::filesystem::path& path, TokenType type) {
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  TESSERA_CHECK(
      !code,
      "cannot read the tokens of '{}': {}",
      path.string(),
      code.message());
  const auto width = type == TokenType::kUint16 ? 2U : 4U;
  check_is_token_file(path, type);
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

void TokenFile::check_inside(int64_t begin, int64_t count) const {
  TESSERA_CHECK(
      begin >= 0 && begin <= size() && count >= 0 && count <= size() - begin,
      "{} tokens starting at {} are not in '{}', which has {}",
      count,
      begin,
      path_.string(),
      size());
}

std::optional<int64_t> TokenFile::first_outside(
    int64_t begin,
    int64_t count,
    int64_t vocab) const {
  check_inside(begin, count);
  const auto bound = static_cast<uint64_t>(vocab);
  const int64_t found =
      type_ == TokenType::kUint16
          ? first_at_least(
                static_cast<const uint16_t*>(tokens_.const_data_ptr()) + begin,
                count,
                bound)
          : first_at_least(
                static_cast<const uint32_t*>(tokens_.const_data_ptr()) + begin,
                count,
                bound);
  return found < count ? std::optional(begin + found) : std::nullopt;
}

void TokenFile::fail_outside(int64_t position, int64_t vocab) const {
  TESSERA_FAIL(
      "'{}': token {} (from 0) is {}, but the model's vocabulary has {} tokens; was the text encoded with this model's tokenizer, and is data.token_type right?",
      path_.string(),
      position,
      read(position, 1).item<int64_t>(),
      vocab);
}

at::Tensor TokenFile::read(int64_t begin, int64_t count) const {
  check_inside(begin, count);
  const at::Tensor tokens = tokens_.narrow(0, begin, count).to(torch::kInt64);
  // uint16 is mapped as int16.
  return type_ == TokenType::kUint16 ? tokens.bitwise_and(0xffff) : tokens;
}

} // namespace tessera::zoo
