// SPDX-License-Identifier: Apache-2.0
#pragma once
// JSON text to values, strictly.

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace tessera {

/// Parses one JSON value that fills the whole of `text`.
/// @param source names the text in errors: usually the file's path.
/// @throws Error "source:line:column: ..." on a syntax error, on a key that an
/// object holds twice, on nesting deeper than 64 and on a number that no double
/// can hold, naming the key that stands before it.
nlohmann::json parse_json(std::string_view text, std::string_view source);

/// The value as short JSON text, to be shown in a message: cut when long, and
/// never throws on invalid UTF-8.
std::string show_json(const nlohmann::json& value);

} // namespace tessera
