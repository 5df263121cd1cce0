// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"

namespace tessera::runtime {

using nlohmann::json;

namespace {

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == '-';
}

std::vector<std::string> split_path(
    std::string_view path,
    std::string_view override_text) {
  std::vector<std::string> keys(1);
  for (const char c : path) {
    if (c == '.') {
      keys.emplace_back();
    } else {
      keys.back() += c;
    }
  }
  for (const std::string& key : keys) {
    TESSERA_CHECK(
        !key.empty() && std::all_of(key.begin(), key.end(), is_key_character),
        "override '{}': '{}' is not a valid key; write key.path=value, where each key consists of letters, digits, '_' and '-'",
        override_text,
        key);
  }
  return keys;
}

json parse_value(std::string_view text, std::string_view override_text) {
  if (json::accept(text)) {
    return parse_json(text, formatted("override '{}'", override_text));
  }
  json value = std::string(text);
  try {
    static_cast<void>(value.dump());
  } catch (const json::exception&) {
    TESSERA_FAIL(
        "override '{}': the value is not valid UTF-8; write it in UTF-8",
        override_text);
  }
  return value;
}

// Returns the element of `value` under `key`; creates it in an object.
json& descend(
    json& value,
    const std::string& key,
    const std::string& so_far,
    std::string_view override_text) {
  if (value.is_array()) {
    size_t index = 0;
    const char* const end = key.data() + key.size();
    const auto [stop, code] = std::from_chars(key.data(), end, index);
    TESSERA_CHECK(
        code == std::errc() && stop == end && index < value.size(),
        "override '{}': '{}' is not an index into {}, which has {} elements; use an index below that, or give the whole array",
        override_text,
        key,
        so_far,
        value.size());
    return value[index];
  }
  if (value == "") { // as a section is cleared, see ConfigReader::get_object()
    value = nullptr;
  }
  TESSERA_CHECK(
      value.is_object() || value.is_null(),
      "override '{}': {} is {}, which has no element '{}'; shorten the path",
      override_text,
      so_far,
      show_json(value),
      key);
  return value[key];
}

} // namespace

std::string apply_override(json& root, std::string_view override_text) {
  const size_t equals = override_text.find('=');
  TESSERA_CHECK(
      equals != std::string_view::npos,
      "override '{}' has no '='; write key.path=value",
      override_text);
  const auto keys = split_path(override_text.substr(0, equals), override_text);
  json value = parse_value(override_text.substr(equals + 1), override_text);

  json changed = root; // An error half-way must not change the root.
  json* at = &changed;
  std::string so_far;
  for (const std::string& key : keys) {
    at = &descend(*at, key, so_far, override_text);
    so_far += (so_far.empty() ? "" : ".") + key;
  }
  *at = std::move(value);
  root = std::move(changed);
  return so_far;
}

} // namespace tessera::runtime
