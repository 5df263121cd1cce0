// SPDX-License-Identifier: Apache-2.0
// A configuration of any bytes, with overrides in lines behind a line "====".

#include "fuzz/fuzz_target.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"

#include <nlohmann/json.hpp>

#include <functional>
#include <vector>

namespace tessera::fuzz_config_reader {
namespace {

/// Every getter asks for every key, and refuses what it does not take.
void read_all(
    const runtime::ConfigReader& reader,
    const nlohmann::json& object) {
  for (const auto& item : object.items()) {
    const std::string& key = item.key();
    const std::function<void()> getters[] = {
        [&] { reader.get_string(key); },
        [&] { reader.get_bool(key); },
        [&] { reader.get_int(key, {.min = 1, .max = 100}); },
        [&] { reader.get_double(key, {.min = 0, .open_min = true}); },
        [&] { reader.get_double_or(key, "auto"); },
        [&] {
          reader.get_enum<int>(key, {{"adamw", 1}, {"linear", 2}});
        },
        [&] { reader.get_strings(key); },
        [&] { reader.get_ints(key, {.min = 0}); },
        [&] { reader.get_doubles(key); },
        [&] { reader.get_objects(key); },
        [&] { read_all(reader.get_object(key), item.value()); }};
    for (const auto& get : getters) {
      try {
        get();
      } catch (const Error&) {
      }
    }
  }
}

} // namespace

TESSERA_FUZZ_TARGET(config_reader) {
  std::string_view text = input;
  std::vector<std::string> overrides;
  const size_t end = text.find("\n====\n");
  if (end != std::string_view::npos) {
    std::string_view lines = text.substr(end + 6);
    text = text.substr(0, end);
    while (!lines.empty()) {
      const size_t next = std::min(lines.find('\n'), lines.size() - 1) + 1;
      overrides.emplace_back(lines.substr(0, next - 1));
      lines.remove_prefix(next);
    }
  }
  try {
    nlohmann::json root = runtime::parse_json(text, "config.json");
    const runtime::ConfigReader reader(root, "config.json", overrides);
    for (const std::string& one : overrides) {
      runtime::apply_override(root, one);
    }
    read_all(reader, root);
    reader.finish();
    reader.resolved().dump();
  } catch (const Error&) {
  }
}

} // namespace tessera::fuzz_config_reader
