// SPDX-License-Identifier: Apache-2.0
#pragma once
// `grapheme_end()` finds what is one character to a reader: an extended
// grapheme cluster (Unicode Standard Annex 29), without the rule for conjuncts
// of Indic scripts.

#include <cstddef>
#include <string_view>

namespace tessera::text {

/// The end of the cluster that begins at `at` of valid UTF-8.
size_t grapheme_end(std::string_view text, size_t at);

} // namespace tessera::text
