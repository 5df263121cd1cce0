// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/config_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

using nlohmann::json;

struct Extended {
  json root;
  ConfigOrigins origins; ///< of what files below have
};

/// Adds what `top` does not have. @param path with "." behind it.
void add_absent(
    json& top,
    const json& base,
    const std::string& path,
    const std::string& base_file,
    ConfigOrigins& origins) {
  for (const auto& [key, value] : base.items()) {
    const auto found = top.find(key);
    if (found == top.end()) {
      top[key] = value;
      origins.emplace(path + key, base_file); // or that of an even lower file
    } else if (found->is_null()) {
      top.erase(found); // an absent key, in place of the one below
    } else if (found->is_object() && value.is_object()) {
      if (const auto origin = origins.find(path + key);
          origin != origins.end()) { // now that of some of its keys
        for (const auto& item : value.items()) {
          origins.emplace(path + key + "." + item.key(), origin->second);
        }
        origins.erase(path + key);
      }
      add_absent(*found, value, path + key + ".", base_file, origins);
    } else {
      std::erase_if(origins, [&](const auto& lower) {
        return lower.first == path + key ||
               lower.first.starts_with(path + key + ".");
      });
    }
  }
}

/// The remedy for YAML, which other trainers' configurations are.
std::string format_hint(const std::filesystem::path& file) {
  const auto ending = file.extension();
  return ending == ".yaml" || ending == ".yml"
             ? formatted(
                   ". A configuration is JSON; convert it: python3 -c 'import json, sys, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout, indent=1)' < {} > {}",
                   file.string(),
                   std::filesystem::path(file)
                       .replace_extension(".json")
                       .string())
             : "";
}

json parse_config(const std::filesystem::path& file) {
  const std::string text = read_text_file(file);
  try {
    return parse_json(text, file.string());
  } catch (const Error& error) {
    throw Error(error.what() + format_hint(file));
  }
}

/// @param above the files that lead here.
Extended load_with_base(
    const std::filesystem::path& file,
    const AdaptConfig& adapt,
    std::vector<std::filesystem::path>& above) {
  std::error_code error; // a file without a path, in memory, has none
  auto known = std::filesystem::weakly_canonical(file, error);
  if (error) {
    known = file.lexically_normal();
  }
  const bool again =
      std::find(above.begin(), above.end(), known) != above.end();
  above.push_back(known);
  if (again) {
    std::string files;
    for (const auto& one : above) {
      files += (files.empty() ? "'" : "' -> '") + one.string();
    }
    TESSERA_FAIL("configurations extend each other: {}'", files);
  }
  Extended result{parse_config(file), {}};
  json& root = result.root;
  if (!root.is_object()) {
    return result; // refused by the reader
  }
  root.erase("$schema");
  if (adapt) {
    adapt(root, file);
  }
  const auto base = root.find("extends");
  if (base != root.end() && base->is_null()) {
    root.erase(base);
  } else if (base != root.end()) {
    TESSERA_CHECK(
        base->is_string(),
        "{}: extends is {}; expected the path of a configuration",
        file.string(),
        show_json(*base));
    const auto base_file = file.parent_path() / base->get<std::string>();
    root.erase(base);
    std::error_code code;
    TESSERA_CHECK(
        std::filesystem::exists(base_file, code),
        "'{}', which '{}' extends, does not exist; give its path relative to the folder of that file",
        base_file.string(),
        file.string());
    Extended lower = load_with_base(base_file, adapt, above);
    TESSERA_CHECK(
        lower.root.is_object(),
        "{}, which '{}' extends, is {}; expected an object",
        base_file.string(),
        file.string(),
        show_json(lower.root));
    result.origins = std::move(lower.origins);
    add_absent(root, lower.root, "", base_file.string(), result.origins);
  }
  return result;
}

} // namespace

ConfigReader read_config_file(
    const std::filesystem::path& file,
    std::span<const std::string> overrides,
    const AdaptConfig& adapt) {
  std::vector<std::filesystem::path> above;
  Extended config = load_with_base(file, adapt, above);
  return {
      std::move(config.root),
      file.string(),
      overrides,
      std::move(config.origins)};
}

} // namespace tessera::runtime
