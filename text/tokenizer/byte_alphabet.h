// SPDX-License-Identifier: Apache-2.0
#pragma once
// `byte_alphabet()` are the printable characters by which GPT-2's vocabulary
// writes bytes; `token_of_byte()` is how those of sentencepiece do.

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

/// The character of each byte.
const std::array<char32_t, 256>& byte_alphabet();

/// The byte that a character stands for.
std::optional<unsigned char> byte_of_character(char32_t character);

/// The bytes that a token stands for; nothing if one of its characters stands
/// for none.
std::optional<std::string> bytes_of_token(std::string_view token);

/// How a vocabulary writes bytes.
std::string token_of_bytes(std::string_view bytes);

/// "<0x0A>", as vocabularies with tokens of single bytes among others write
/// one.
std::string token_of_byte(unsigned char byte);

/// The byte that such a token stands for; nothing if it is another token.
std::optional<unsigned char> byte_of_token(std::string_view token);

} // namespace tessera::text
