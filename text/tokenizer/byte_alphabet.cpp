// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer/byte_alphabet.h"

#include "tessera/runtime/core/format.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace tessera::text {

namespace {

/// Bytes that are printable in Latin-1 stand for themselves.
bool is_printable(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) ||
         byte >= 0xae;
}

constexpr char32_t kFirstOfOthers = 0x100;

std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = kFirstOfOthers;
  for (unsigned byte = 0; byte < alphabet.size(); ++byte) {
    alphabet[byte] = is_printable(byte) ? byte : next++;
  }
  return alphabet;
}

} // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> kAlphabet = make_alphabet();
  return kAlphabet;
}

std::optional<unsigned char> byte_of_character(char32_t character) {
  const auto& alphabet = byte_alphabet();
  if (character < kFirstOfOthers) {
    return is_printable(character)
               ? std::optional(static_cast<unsigned char>(character))
               : std::nullopt;
  }
  const auto* const found =
      std::find(alphabet.begin(), alphabet.end(), character);
  return found == alphabet.end() ? std::nullopt
                                 : std::optional(static_cast<unsigned char>(
                                       found - alphabet.begin()));
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bool is_known = true;
  for_each_code_point(token, [&](char32_t c, size_t) {
    const auto byte = byte_of_character(c);
    is_known = is_known && byte;
    bytes.push_back(static_cast<char>(byte.value_or(0)));
  });
  return is_known ? std::optional(std::move(bytes)) : std::nullopt;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    append_utf8(token, byte_alphabet()[static_cast<unsigned char>(byte)]);
  }
  return token;
}

std::string token_of_byte(unsigned char byte) {
  return formatted("<0x{:02X}>", static_cast<int>(byte));
}

std::optional<unsigned char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') {
    return std::nullopt;
  }
  unsigned char byte = 0;
  const char* const end = token.data() + 5;
  const auto [at, error] = std::from_chars(token.data() + 3, end, byte, 16);
  return error == std::errc() && at == end ? std::optional(byte) : std::nullopt;
}

} // namespace tessera::text
