// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ConfigReader remembers. For config.cpp only.

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

namespace tessera {

// One object of the configuration and what was asked of it.
struct ConfigReader::Node {
  std::shared_ptr<const nlohmann::json> root; // Keeps `object` alive.
  const nlohmann::json* object;
  std::string source;
  std::string path; // Empty at the root.
  std::vector<std::string> known; // Keys asked for, in that order.
  nlohmann::ordered_json resolved =
      nlohmann::ordered_json::object(); // Without nested objects.
  struct Child {
    std::string key;
    std::vector<std::shared_ptr<Node>> nodes;
    bool in_array;
  };
  std::vector<Child> children;

  std::string path_of(std::string_view key) const {
    return path.empty() ? std::string(key) : path + "." + std::string(key);
  }

  std::string where(std::string_view key) const {
    return source + ": " + path_of(key);
  }

  // The value of a key, or nullptr when it is absent or null.
  const nlohmann::json* find(std::string_view key) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      known.emplace_back(key);
    }
    const auto found = object->find(key);
    return found == object->end() || found->is_null() ? nullptr : &*found;
  }

  // The readers of what is nested under a key; asking twice gives the same.
  Child& child(std::string_view key, bool in_array) {
    for (Child& existing : children) {
      if (existing.key == key) {
        return existing;
      }
    }
    return children.emplace_back(Child{std::string(key), {}, in_array});
  }

  std::shared_ptr<Node> nested(
      std::string_view key,
      const nlohmann::json& value) const {
    auto node = std::make_shared<Node>();
    node->root = root;
    node->object = &value;
    node->source = source;
    node->path = path_of(key);
    return node;
  }

  bool is_known(const std::string& key) const {
    return std::find(known.begin(), known.end(), key) != known.end();
  }

  [[noreturn]] void fail_missing(
      std::string_view key,
      std::string_view expected) const {
    std::vector<std::string> unknown;
    for (const auto& [other, value] : object->items()) {
      if (!is_known(other)) {
        unknown.push_back(other);
      }
    }
    const std::string nearest = nearest_name(key, unknown);
    TESSERA_FAIL(
        where(key),
        " is missing; expected ",
        expected,
        nearest.empty() ? "" : "; is it what '" + nearest + "' should be?");
  }

  void finish() const {
    for (const auto& [key, value] : object->items()) {
      if (is_known(key)) {
        continue;
      }
      const std::string nearest = nearest_name(key, known);
      std::string remedy = "did you mean '" + nearest + "'?";
      if (nearest.empty()) {
        remedy = "known here: ";
        for (const std::string& name : known) {
          remedy += (&name == known.data() ? "" : ", ") + name;
        }
      }
      TESSERA_FAIL(where(key), " is not a known key; ", remedy);
    }
    for (const Child& child : children) {
      for (const auto& node : child.nodes) {
        node->finish();
      }
    }
  }

  nlohmann::ordered_json resolve() const {
    nlohmann::ordered_json all = nlohmann::ordered_json::object();
    for (const std::string& key : known) {
      const auto child = std::find_if(
          children.begin(), children.end(), [&](const Child& candidate) {
            return candidate.key == key;
          });
      if (child == children.end()) {
        if (resolved.contains(key)) {
          all[key] = resolved[key];
        }
      } else if (!child->in_array) {
        all[key] = child->nodes.front()->resolve();
      } else {
        all[key] = nlohmann::ordered_json::array();
        for (const auto& node : child->nodes) {
          all[key].push_back(node->resolve());
        }
      }
    }
    return all;
  }
};

} // namespace tessera
