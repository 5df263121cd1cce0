// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ConfigReader::Node` is the state behind a `ConfigReader`: a JSON object and
// the keys that fields have asked it for. For config.cpp only.

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

namespace tessera::runtime {

// The whole configuration and its origin.
struct ConfigDocument {
  nlohmann::json root;
  std::string source;
  ConfigOrigins origins; // By path, of what is not from `source`.
  std::map<std::string, std::string> overrides; // By path; the last one wins.

  // Origin of the value at a path: an override of the path, of an object that
  // contains it or of a value inside it, or else the source.
  std::string origin_of(const std::string& path) const {
    if (const std::string* text = find_around(overrides, path)) {
      return "override '" + *text + "'";
    }
    const std::string* made = find_below(path);
    if (made == nullptr && is_missing_from_overrides(path)) {
      made = find_below(path.substr(0, path.rfind('.')));
    }
    const std::string* file = find_around(origins, path);
    return made != nullptr   ? "override '" + *made + "'"
           : file != nullptr ? *file
                             : source;
  }

 private:
  // An override of a value inside the one at a path.
  const std::string* find_below(const std::string& path) const {
    const auto below = overrides.lower_bound(path + ".");
    return below != overrides.end() && below->first.starts_with(path + ".")
               ? &below->second
               : nullptr;
  }

  // Whether there is no such key in an object whose keys are all of overrides,
  // such as model.lora.target_modules after model.lora.r=4.
  bool is_missing_from_overrides(const std::string& path) const {
    const nlohmann::json* object = &root;
    size_t begin = 0;
    for (size_t end = path.find('.'); end != std::string::npos;
         begin = end + 1, end = path.find('.', begin)) {
      const auto found = object->find(path.substr(begin, end - begin));
      if (found == object->end() || !found->is_object()) {
        return false;
      }
      object = &*found;
    }
    if (begin == 0 || object->empty() || object->contains(path.substr(begin))) {
      return false;
    }
    const std::string above = path.substr(0, begin);
    for (const auto& [key, value] : object->items()) {
      if (!overrides.contains(above + key) &&
          find_below(above + key) == nullptr) {
        return false;
      }
    }
    return true;
  }

  // What is known of the path, or of an object that contains it.
  static const std::string* find_around(
      const std::map<std::string, std::string>& texts,
      std::string path) {
    for (; !path.empty(); path.resize(
             path.find('.') == std::string::npos ? 0 : path.rfind('.'))) {
      if (const auto found = texts.find(path); found != texts.end()) {
        return &found->second;
      }
    }
    return nullptr;
  }
};

// One object of the configuration and the keys requested from it.
struct ConfigReader::Node {
  using Nodes = std::vector<std::shared_ptr<Node>>;

  std::shared_ptr<const ConfigDocument> document; // Keeps `object` alive.
  const nlohmann::json* object;
  std::string path; // Empty at the root.
  std::vector<std::string> known; // Requested keys, in order.
  nlohmann::ordered_json resolved =
      nlohmann::ordered_json::object(); // Without nested objects.
  struct Child {
    std::string key;
    Nodes nodes;
    bool in_array;
  };
  std::vector<Child> children;

  std::string path_of(std::string_view key) const {
    return path.empty() ? std::string(key) : path + "." + std::string(key);
  }

  std::string where(std::string_view key) const {
    const std::string full = path_of(key);
    return document->origin_of(full) + ": " + full;
  }

  // Returns the value of a key, or nullptr if it is absent or null. Makes the
  // key known.
  const nlohmann::json* find(std::string_view key) {
    if (!is_known(key)) {
      known.emplace_back(key);
    }
    const auto found = object->find(key);
    return found == object->end() || found->is_null() ? nullptr : &*found;
  }

  // The value of a field; `fallback` if its key is absent.
  nlohmann::json read(
      const OptionField& field,
      const nlohmann::json& fallback) {
    const std::string key = field.key.name;
    const bool is_one_or_many = field.shape == OptionShape::kOneOrMany;
    const nlohmann::json* value = find(key);
    if (value == nullptr) {
      if (field.key.required) {
        fail_missing(key, detail::expected(field));
      }
      if (!fallback.is_null()) {
        resolved[key] = is_one_or_many && fallback.size() == 1
                            ? fallback.front()
                            : fallback;
      } else if (field.word != nullptr) {
        resolved[key] = field.word;
      }
      return fallback;
    }
    if (field.word != nullptr && *value == field.word) {
      resolved[key] = field.word;
      return {};
    }
    nlohmann::json result = detail::convert(field, *value, where(key));
    resolved[key] = result;
    if (is_one_or_many && result.is_string()) {
      // "data.metric=" on the command line clears an array.
      return result == "" ? nlohmann::json::array()
                          : nlohmann::json::array({std::move(result)});
    }
    return result;
  }

  // The object under a key, the same on every call; an empty one if there is
  // none, also for "", as "model.lora=" clears it.
  std::shared_ptr<Node> nested(std::string_view key) {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    const nlohmann::json* value = find(key);
    if (value != nullptr && *value == "") {
      value = nullptr;
    }
    TESSERA_CHECK(
        value == nullptr || value->is_object(),
        "{} is {}; expected an object",
        where(key),
        detail::found(*value));
    Child& made = child(key, false);
    if (made.nodes.empty()) {
      made.nodes.push_back(make(key, value == nullptr ? kEmpty : *value));
    }
    return made.nodes.front();
  }

  // The objects of an array, the same on every call; an absent one is empty.
  Nodes elements(std::string_view key) {
    const nlohmann::json* value = find(key);
    TESSERA_CHECK(
        value == nullptr || value->is_array(),
        "{} is {}; expected an array of objects",
        where(key),
        detail::found(*value));
    Child& made = child(key, true);
    for (size_t i = made.nodes.size(); value != nullptr && i < value->size();
         ++i) {
      const std::string element = formatted("{}.{}", key, i);
      const nlohmann::json& one = (*value)[i];
      TESSERA_CHECK(
          one.is_object(),
          "{} is {}; expected an object",
          where(element),
          detail::found(one));
      made.nodes.push_back(make(element, one));
    }
    return made.nodes;
  }

  bool is_known(std::string_view key) const {
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
        "{} is missing; expected {}{}",
        where(key),
        expected,
        nearest.empty() ? "" : "; did you misspell it as '" + nearest + "'?");
  }

  // Path of a known key of that name, here or in nested objects, or empty.
  std::string path_of_known(const std::string& key) const {
    if (is_known(key)) {
      return path_of(key);
    }
    for (const Child& child : children) {
      if (!child.in_array) {
        const auto found = child.nodes.front()->path_of_known(key);
        if (!found.empty()) {
          return found;
        }
      }
    }
    return "";
  }

  // The key that a foreign name stands for, or empty.
  std::string key_for(
      const std::string& name,
      std::span<const ForeignKey> foreign) const {
    for (const ForeignKey& other : foreign) {
      if ((name == other.name || path_of(name) == other.name) &&
          path_of(name) != other.here) {
        return std::string(other.here);
      }
    }
    return "";
  }

  // Suggests what to write instead of an unknown key.
  std::string remedy_for(const std::string& key, const Node& root) const {
    if (const auto nearest = nearest_name(key, known); !nearest.empty()) {
      return "did you mean '" + path_of(nearest) + "'?";
    }
    for (const std::string& name : known) { // "context" of "context_key"
      if (name.starts_with(key + "_")) {
        return "did you mean '" + path_of(name) + "'?";
      }
    }
    if (const auto elsewhere = root.path_of_known(key); !elsewhere.empty()) {
      return "did you mean '" + elsewhere + "'?";
    }
    std::string all = "known keys: ";
    for (const std::string& name : known) {
      all += (&name == known.data() ? "" : ", ") + name;
    }
    return all;
  }

  // Adds each unknown key, here and below.
  void add_unknown(
      const Node& root,
      std::span<const ForeignKey> foreign,
      std::vector<UnknownKey>& unknown) const {
    for (const auto& [key, value] : object->items()) {
      if (!is_known(key)) {
        UnknownKey& one = unknown.emplace_back();
        one.path = path_of(key);
        one.origin = document->origin_of(one.path);
        one.here = key_for(key, foreign);
        one.remedy =
            one.here.empty() ? remedy_for(key, root) : "use '" + one.here + "'";
      }
    }
    for (const Child& child : children) {
      for (const auto& node : child.nodes) {
        node->add_unknown(root, foreign, unknown);
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

 private:
  Child& child(std::string_view key, bool in_array) {
    for (Child& existing : children) {
      if (existing.key == key) {
        return existing;
      }
    }
    return children.emplace_back(Child{std::string(key), {}, in_array});
  }

  std::shared_ptr<Node> make(std::string_view key, const nlohmann::json& value)
      const {
    auto node = std::make_shared<Node>();
    node->document = document;
    node->object = &value;
    node->path = path_of(key);
    return node;
  }
};

} // namespace tessera::runtime
