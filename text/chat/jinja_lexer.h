// SPDX-License-Identifier: Apache-2.0
#pragma once
// `split_template()` splits a Jinja template into tokens, as Jinja does with
// trim_blocks and lstrip_blocks.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::text::jinja {

enum class TokenKind {
  kData, ///< text outside of tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString, ///< without quotes and escapes
  kInteger, ///< without underscores
  kFloat, ///< without underscores
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::size_t offset = 0; ///< in the source
  std::string text;
};

/// What is wrong with a template, and where.
struct SyntaxFault {
  std::size_t offset = 0;
  std::string message;
};

/// The text with "\n" as its only line end, without the last of them: what the
/// offsets of tokens refer to.
std::string normalized_source(std::string_view text);

/// @param source of normalized_source(), valid UTF-8.
/// @throws SyntaxFault
std::vector<Token> split_template(std::string_view source);

} // namespace tessera::text::jinja
