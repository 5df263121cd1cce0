// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/token_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/rows/data_format.h"

#include <torch/types.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <type_traits>

namespace tessera::zoo {

namespace {

namespace fs = std::filesystem;

/// @throws tessera::Error on a file that is known to be something else.
void check_is_token_file(const std::filesystem::path& path, TokenType type) {
  const text::DataFormat format = text::data_format_of(path);
  TESSERA_CHECK(
      !text::is_text_file(path),
      "'{}' is text, not a token file. Tokenize it with: tessera tokenize --model FOLDER --input {} --output {}, where FOLDER has the model's tokenizer, and set data.train={}",
      path.string(),
      text::shell_word(path),
      text::shell_word(fs::path(path).replace_extension()),
      fs::path(path).replace_extension().string());
  if (format == text::DataFormat::kUnknown) {
    return;
  }
  // Holds the tokens of every vocabulary.
  const char* const wide = name_of(TokenType::kInt32);
  std::string command = text::unpack_command(format, path);
  if (format == text::DataFormat::kNumpy) {
    command = formatted(
        "python3 -c 'import numpy; numpy.load(\"{}\").astype(\"{}\").tofile(\"tokens.bin\")', and set data.token_type={}",
        path.string(),
        wide,
        wide);
  } else if (format == text::DataFormat::kSafetensors) {
    command = formatted(
        "python3 -c 'from safetensors.numpy import load_file; load_file(\"{}\")[\"input_ids\"].astype(\"{}\").tofile(\"tokens.bin\")', and set data.token_type={}",
        path.string(),
        wide,
        wide);
  } else if (format == text::DataFormat::kLlmC) {
    command = formatted("tail -c +1025 {} > tokens.bin", path.string());
  }
  TESSERA_FAIL(
      "'{}' is {}, not a token file: expected only token ids, as {} (data.token_type), one after another, without a header. {}",
      path.string(),
      name_of(format),
      name_of(type),
      command.empty() ? "Make one of text with `tessera tokenize`"
                      : "Make one with: " + command);
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

/// Calls `use` with a null pointer to the type of the tokens.
template <typename Use>
auto with_type(TokenType type, const Use& use) {
  switch (type) {
    case TokenType::kUint8:
      return use(static_cast<const uint8_t*>(nullptr));
    case TokenType::kInt8:
      return use(static_cast<const int8_t*>(nullptr));
    case TokenType::kInt16:
      return use(static_cast<const int16_t*>(nullptr));
    case TokenType::kUint16:
      return use(static_cast<const uint16_t*>(nullptr));
    case TokenType::kInt32:
      return use(static_cast<const int32_t*>(nullptr));
    case TokenType::kUint32:
      return use(static_cast<const uint32_t*>(nullptr));
    case TokenType::kInt64:
      break;
  }
  return use(static_cast<const int64_t*>(nullptr));
}

int64_t file_bytes(const std::filesystem::path& path) {
  std::error_code code;
  const auto bytes = std::filesystem::file_size(path, code);
  TESSERA_CHECK(
      !code,
      "cannot read the tokens of '{}': {}",
      path.string(),
      code.message());
  return static_cast<int64_t>(bytes);
}

at::Tensor map_tokens(
    const std::filesystem::path& path,
    const TokenLayout& layout) {
  const int64_t width = bytes_of(layout.type);
  const auto type = width == 1   ? torch::kUInt8
                    : width == 2 ? torch::kInt16
                    : width == 4 ? torch::kInt32
                                 : torch::kInt64;
  if (layout.count == 0) { // nothing cannot be mapped
    return torch::empty({0}, type);
  }
  const int64_t first = layout.begin_bytes / width;
  return torch::from_file(
             path.string(),
             /*shared=*/false,
             first + layout.count,
             torch::dtype(type))
      .narrow(0, first, layout.count);
}

TokenLayout plain_layout(const std::filesystem::path& path, TokenType type) {
  const int64_t bytes = file_bytes(path);
  const int64_t width = bytes_of(type);
  check_is_token_file(path, type);
  TESSERA_CHECK(
      bytes > 0 && bytes % width == 0,
      "'{}' has {} bytes, which is not a multiple of the token size, {} bytes; is data.token_type right?",
      path.string(),
      bytes,
      width);
  return {type, 0, bytes / width};
}

} // namespace

const char* name_of(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kUint32:
      return "uint32";
    case TokenType::kInt64:
      break;
  }
  return "int64";
}

int64_t bytes_of(TokenType type) {
  return with_type(type, [](const auto* token) {
    return static_cast<int64_t>(sizeof(*token));
  });
}

TokenFile::TokenFile(const std::filesystem::path& path, TokenType type)
    : TokenFile(path, plain_layout(path, type)) {}

TokenFile::TokenFile(
    const std::filesystem::path& path,
    const TokenLayout& layout)
    : path_(path), type_(layout.type) {
  const int64_t bytes = file_bytes(path);
  const int64_t expected =
      layout.begin_bytes + layout.count * bytes_of(layout.type);
  TESSERA_CHECK(
      bytes == expected,
      "'{}' has {} bytes, but {} tokens of {} need {}; it is {}: copy or make it again",
      path.string(),
      bytes,
      layout.count,
      name_of(layout.type),
      expected,
      bytes < expected ? "truncated" : "too long");
  tokens_ = map_tokens(path, layout);
}

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
  const int64_t found = with_type(type_, [&](const auto* null) {
    using Token = std::remove_const_t<std::remove_reference_t<decltype(*null)>>;
    using Unsigned = std::make_unsigned_t<Token>;
    return first_at_least(
        static_cast<const Unsigned*>(tokens_.const_data_ptr()) + begin,
        count,
        static_cast<uint64_t>(vocab));
  });
  return found < count ? std::optional(begin + found) : std::nullopt;
}

void TokenFile::check_type(int64_t vocab) const {
  const int64_t width = bytes_of(type_);
  TESSERA_CHECK(
      width > 2 || vocab <= int64_t{1} << 8 * width,
      "'{}': data.token_type is {}, whose tokens are below {}, but the model's vocabulary has {} tokens; write the file with numpy.array(ids, \"int32\").tofile(...), and set data.token_type=int32",
      path_.string(),
      name_of(type_),
      int64_t{1} << 8 * width,
      vocab);
  if (width > 4) {
    return;
  }
  // The upper half of a wider integer is 0 for most tokens.
  constexpr int64_t kFewest = 32;
  const at::Tensor first = read(0, std::min<int64_t>(size(), 1 << 16) / 4 * 4);
  if (first.numel() < kFewest) {
    return;
  }
  const at::Tensor quads = first.view({-1, 4}).ne(0);
  const auto any_in = [&](int64_t index) {
    return quads.select(1, index).any().item<bool>();
  };
  if (any_in(1) || any_in(3) || !any_in(0)) {
    return;
  }
  TESSERA_FAIL(
      "'{}': every second one of the first {} tokens is 0, as in a file of {} that is read as {}; {}",
      path_.string(),
      first.numel(),
      name_of(width == 4 || !any_in(2) ? TokenType::kInt64 : TokenType::kInt32),
      name_of(type_),
      width == 4 || !any_in(2)
          ? "write it again with numpy.array(ids, \"int32\").tofile(...), and set data.token_type=int32"
          : "set data.token_type=int32");
}

void TokenFile::fail_outside(int64_t position, int64_t vocab) const {
  TESSERA_FAIL(
      "'{}': token {} (from 0) is {}, but the model's vocabulary has {} tokens; was the text encoded with this model's tokenizer, and is data.token_type right?",
      path_.string(),
      position,
      read(position, 1).item<int64_t>(),
      vocab);
}

void TokenFile::read_into(int64_t begin, std::span<int64_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  check_inside(begin, count);
  with_type(type_, [&](const auto* null) {
    using Token = std::remove_const_t<std::remove_reference_t<decltype(*null)>>;
    const auto* from =
        static_cast<const Token*>(tokens_.const_data_ptr()) + begin;
    std::copy(from, from + count, tokens.begin());
    return 0;
  });
}

at::Tensor TokenFile::read(int64_t begin, int64_t count) const {
  check_inside(begin, count);
  at::Tensor tokens = torch::empty({count}, torch::kInt64);
  read_into(
      begin, {tokens.mutable_data_ptr<int64_t>(), static_cast<size_t>(count)});
  return tokens;
}

} // namespace tessera::zoo
