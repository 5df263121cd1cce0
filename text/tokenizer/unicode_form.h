// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UnicodeForm` is a normal form of Unicode; `append_in_form()` brings a text
// into it and tells what each code point stands for.

#include "tessera/text/tokenizer/aligned_text.h"

#include <string_view>
#include <vector>

namespace tessera::text {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

/// Appends the normal form of `text`, by the tables of Unicode 9
/// ([Note: Unicode 8]).
void append_in_form(
    UnicodeForm form,
    std::string_view text,
    std::vector<Rewritten>& code_points);

/// Brings the whole text into the form.
void rewrite_in_form(UnicodeForm form, AlignedText& text);

} // namespace tessera::text
