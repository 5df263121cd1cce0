// SPDX-License-Identifier: Apache-2.0
#pragma once
// Text inside of SVG and HTML.

#include <string>
#include <string_view>

namespace tessera {

/// `text` with what means something in markup escaped, quotes included, and
/// control characters, which XML does not have, as spaces.
std::string escaped_markup(std::string_view text);

} // namespace tessera
