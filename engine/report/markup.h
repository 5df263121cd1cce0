// SPDX-License-Identifier: Apache-2.0
#pragma once
// `escaped_markup()` escapes text for SVG and HTML.

#include <string>
#include <string_view>

namespace tessera::engine {

/// `text` with the special characters of markup escaped, quotes included, and
/// control characters, which XML does not allow, replaced by spaces.
std::string escaped_markup(std::string_view text);

} // namespace tessera::engine
