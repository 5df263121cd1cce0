// SPDX-License-Identifier: Apache-2.0
#pragma once
// What hostile files hold: values of the wrong kind and size.

#include "support/mutations.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// What a field may be turned into, as text: some are no JSON.
inline const std::vector<std::string>& hostile_values() {
  static const std::vector<std::string> all = {
      "0",
      "1",
      "2",
      "3",
      "-1",
      "-2",
      "7",
      "17",
      "24",
      "61",
      "100",
      "1000",
      "32768",
      "1048576",
      "268435456",
      "268435457",
      "2147483648",
      "1099511627776",
      "9223372036854775807",
      "9223372036854775808",
      "-9223372036854775808",
      "18446744073709551615",
      "0.5",
      "1.5",
      "-0.1",
      "1e-320",
      "1e300",
      "1e999",
      "NaN",
      "Infinity",
      "true",
      "false",
      "null",
      "\"\"",
      "\"gelu\"",
      "\"nonsense\"",
      "\"\\u0000\"",
      "[]",
      "[1]",
      "[[[]]]",
      "[1, \"a\", null]",
      "{}",
      "{\"a\": 1}",
      "{\"rope_type\": \"yarn\", \"factor\": -1}",
      "{\"rope_type\": \"dynamic\", \"factor\": 1e300}",
      "[\"BertModel\"]",
      "[7]",
      "\"../../etc/passwd\""};
  return all;
}

/// A key somewhere in a file, and the file's text with another value there.
using OnChanged =
    std::function<void(const std::string& key, const std::string& text)>;

/// Puts each of `values` in each place of `root`, one at a time.
inline void for_each_change(
    const nlohmann::json& root,
    const std::vector<std::string>& values,
    const OnChanged& on_changed) {
  const std::string mark = "@here@";
  const std::function<void(const nlohmann::json::json_pointer&, std::string)>
      visit = [&](const nlohmann::json::json_pointer& place, std::string key) {
        const nlohmann::json& found = root.at(place);
        if (!place.empty()) {
          nlohmann::json changed = root;
          changed.at(place) = mark;
          const std::string text = changed.dump();
          const size_t at = text.find('"' + mark + '"');
          for (const std::string& value : values) {
            std::string with = text;
            with.replace(at, mark.size() + 2, value);
            on_changed(key, with);
          }
        }
        for (const auto& [name, inner] : found.items()) {
          if (found.is_object()) {
            visit(place / name, name);
          } else if (found.is_array()) {
            visit(place / std::stoul(name), key);
          }
        }
      };
  visit(nlohmann::json::json_pointer(), "");
}

} // namespace tessera
