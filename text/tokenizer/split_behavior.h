// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SplitBehavior` says what becomes of the matches at which words are divided;
// `append_parts()` divides.

#include "tessera/runtime/core/json_value.h"
#include "tessera/text/tokenizer/aligned_text.h"

#include <vector>

namespace tessera::text {

enum class SplitBehavior {
  kRemoved, ///< they are no part of any word
  kIsolated, ///< each is a word
  kMergedWithPrevious, ///< they end the word before them
  kMergedWithNext, ///< they begin the word after them
  kContiguous, ///< adjacent ones are one word, and so is what is between them
};

/// Appends the parts into which `matches` divide a word of `size` bytes.
/// @param is_inverted what is between them counts as matches, and they do not.
void append_parts(
    size_t size,
    const std::vector<ByteRange>& matches,
    SplitBehavior behavior,
    bool is_inverted,
    std::vector<ByteRange>& parts);

/// By the names of a tokenizer.json: "Removed", "Isolated", ...
/// @throws tessera::Error on another one.
SplitBehavior read_split_behavior(const runtime::JsonValue& value);

} // namespace tessera::text
