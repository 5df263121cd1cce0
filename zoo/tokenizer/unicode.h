// SPDX-License-Identifier: Apache-2.0
#pragma once
// Properties of characters that several parts of tokenizers ask for.

namespace tessera::zoo {

/// Unicode's White_Space.
bool is_white_space(char32_t c);

/// What `\w` matches: letters, marks, decimal digits, connectors and joiners.
bool is_word_character(char32_t c);

} // namespace tessera::zoo
