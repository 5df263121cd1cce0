// SPDX-License-Identifier: Apache-2.0
#pragma once
// `parse_json()` parses JSON text strictly; `show_json()` formats a value for a
// message.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// Parses one JSON value that is the whole of `text`.
/// @param source names the text in errors, usually the path of the file.
/// @param first_line the number of the text's first line in the source.
/// @throws Error "source:line:column: ..." on a syntax error, a duplicate key
///   in an object, nesting deeper than 64, or a number that does not fit in a
///   double, naming the key before it.
nlohmann::json parse_json(
    std::string_view text,
    std::string_view source,
    int64_t first_line = 1);

/// Formats the value as JSON text for a message, truncated if long. Accepts
/// invalid UTF-8.
std::string show_json(const nlohmann::json& value);

} // namespace tessera::runtime
