// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/runtime/core/config_node.h"
#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"

namespace tessera::runtime {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

using namespace detail;

// What other programs call a choice.
constexpr std::pair<std::string_view, const char*> kForeignChoices[] = {
    {"bf16", "bfloat16"},
    {"fp16", "float16"},
    {"fp32", "float32"},
    {"gpu", "cuda"}, // "cpu" is spelled nearer
    {"half", "float16"}};

// The choice that an unknown name stands for, or the nearest one, or empty.
std::string meant_choice(
    std::string_view name,
    std::span<const std::string> names) {
  for (const auto& [foreign, here] : kForeignChoices) {
    if (name == foreign &&
        std::find(names.begin(), names.end(), here) != names.end()) {
      return here;
    }
  }
  return nearest_name(name, names);
}

// A scalar, from the object or the fallback.
template <typename Node, typename Kind>
typename Kind::Value get_scalar(
    Node& node,
    std::string_view key,
    const Kind& kind,
    const std::optional<typename Kind::Value>& fallback) {
  const json* value = node.find(key);
  if (value == nullptr && !fallback) {
    node.fail_missing(key, kind.expected);
  }
  auto result =
      value == nullptr ? *fallback : convert(*value, kind, node.where(key));
  node.resolved[std::string(key)] = result;
  return result;
}

// An array of scalars, from the object or the fallback.
template <typename Node, typename Kind>
std::vector<typename Kind::Value> get_array(
    Node& node,
    std::string_view key,
    const Kind& kind,
    const std::optional<std::vector<typename Kind::Value>>& fallback) {
  const json* value = node.find(key);
  const std::string expected = "an array, each element " + kind.expected;
  if (value == nullptr && !fallback) {
    node.fail_missing(key, expected);
  }
  std::vector<typename Kind::Value> result;
  if (value == nullptr) {
    result = *fallback;
  } else {
    TESSERA_CHECK(
        value->is_array(),
        "{} is {}; expected {}",
        node.where(key),
        found(*value),
        expected);
    for (size_t i = 0; i < value->size(); ++i) {
      result.push_back(
          convert((*value)[i], kind, formatted("{}.{}", node.where(key), i)));
    }
  }
  node.resolved[std::string(key)] = result;
  return result;
}

// An object of scalars, from the object or the fallback.
template <typename Node, typename Kind>
std::map<std::string, typename Kind::Value> get_map(
    Node& node,
    std::string_view key,
    const Kind& kind,
    const std::optional<std::map<std::string, typename Kind::Value>>&
        fallback) {
  const json* value = node.find(key);
  const std::string expected = "an object, each value " + kind.expected;
  if (value == nullptr && !fallback) {
    node.fail_missing(key, expected);
  }
  std::map<std::string, typename Kind::Value> result;
  if (value == nullptr) {
    result = *fallback;
  } else {
    TESSERA_CHECK(
        value->is_object(),
        "{} is {}; expected {}",
        node.where(key),
        found(*value),
        expected);
    for (const auto& [name, one] : value->items()) {
      result[name] =
          convert(one, kind, formatted("{}.{}", node.where(key), name));
    }
  }
  node.resolved[std::string(key)] = result;
  return result;
}

} // namespace

ConfigReader::ConfigReader(
    json root,
    std::string source,
    std::span<const std::string> overrides,
    ConfigOrigins origins)
    : node_(std::make_shared<Node>()) {
  TESSERA_CHECK(
      root.is_object(),
      "{}: the configuration is {}; expected an object",
      source,
      found(root));
  auto document = std::make_shared<ConfigDocument>();
  document->root = std::move(root);
  document->source = std::move(source);
  document->origins = std::move(origins);
  for (const std::string& text : overrides) {
    const std::string path = apply_override(document->root, text);
    // An override of an object discards earlier overrides inside it.
    std::erase_if(document->overrides, [&](const auto& earlier) {
      return earlier.first.starts_with(path + ".");
    });
    document->overrides[path] = text;
  }
  node_->object = &document->root;
  node_->document = std::move(document);
}

ConfigReader::ConfigReader(std::shared_ptr<Node> node)
    : node_(std::move(node)) {}

bool ConfigReader::contains(std::string_view key) const {
  return node_->find(key) != nullptr;
}

bool ConfigReader::is_string(std::string_view key) const {
  const json* value = node_->find(key);
  return value != nullptr && value->is_string();
}

std::string ConfigReader::get_string(
    std::string_view key,
    const std::optional<std::string>& fallback) const {
  return get_scalar(*node_, key, StringKind{}, fallback);
}

bool ConfigReader::get_bool(std::string_view key, std::optional<bool> fallback)
    const {
  return get_scalar(*node_, key, BoolKind{}, fallback);
}

int64_t ConfigReader::get_int(
    std::string_view key,
    IntRange range,
    std::optional<int64_t> fallback) const {
  return get_scalar(*node_, key, IntKind{range}, fallback);
}

int64_t ConfigReader::get_bytes(
    std::string_view key,
    IntRange range,
    std::optional<int64_t> fallback) const {
  IntKind kind{range};
  kind.expected += " (bytes), or a string such as \"11GB\" or \"11GiB\"";
  const json* value = node_->find(key);
  if (value == nullptr || !value->is_string()) {
    return get_scalar(*node_, key, kind, fallback);
  }
  const auto bytes = bytes_in(value->get<std::string>());
  TESSERA_CHECK(
      bytes && range.min <= *bytes && *bytes <= range.max,
      "{} is {}; expected {}",
      node_->where(key),
      found(*value),
      kind.expected);
  node_->resolved[std::string(key)] = *bytes;
  return *bytes;
}

double ConfigReader::get_double(
    std::string_view key,
    DoubleRange range,
    std::optional<double> fallback) const {
  return get_scalar(*node_, key, DoubleKind{range}, fallback);
}

std::optional<double> ConfigReader::get_double_or(
    std::string_view key,
    std::string_view word,
    DoubleRange range) const {
  const json* value = node_->find(key);
  if (value == nullptr || *value == word) {
    node_->resolved[std::string(key)] = word;
    return std::nullopt;
  }
  DoubleKind kind{range};
  kind.expected += ", or \"" + std::string(word) + "\"";
  return get_scalar(*node_, key, kind, {});
}

std::vector<std::string> ConfigReader::get_strings(
    std::string_view key,
    const std::optional<std::vector<std::string>>& fallback) const {
  return get_array(*node_, key, StringKind{}, fallback);
}

std::vector<std::string> ConfigReader::get_string_or_strings(
    std::string_view key,
    const std::vector<std::string>& fallback) const {
  const json* value = node_->find(key);
  if (value == nullptr ? fallback.size() != 1 : value->is_array()) {
    return get_array(*node_, key, StringKind{}, {fallback});
  }
  if (value == nullptr) {
    return {get_scalar(*node_, key, StringKind{}, {fallback.front()})};
  }
  const StringKind kind{"a string, or an array of strings"};
  const std::string one = get_scalar(*node_, key, kind, {});
  return one.empty() ? std::vector<std::string>() : std::vector{one};
}

std::vector<int64_t> ConfigReader::get_ints(
    std::string_view key,
    IntRange range,
    const std::optional<std::vector<int64_t>>& fallback) const {
  return get_array(*node_, key, IntKind{range}, fallback);
}

std::vector<double> ConfigReader::get_doubles(
    std::string_view key,
    DoubleRange range,
    const std::optional<std::vector<double>>& fallback) const {
  return get_array(*node_, key, DoubleKind{range}, fallback);
}

std::map<std::string, int64_t> ConfigReader::get_int_map(
    std::string_view key,
    IntRange range,
    const std::optional<std::map<std::string, int64_t>>& fallback) const {
  return get_map(*node_, key, IntKind{range}, fallback);
}

std::map<std::string, double> ConfigReader::get_double_map(
    std::string_view key,
    DoubleRange range,
    const std::optional<std::map<std::string, double>>& fallback) const {
  return get_map(*node_, key, DoubleKind{range}, fallback);
}

size_t ConfigReader::get_choice(
    std::string_view key,
    std::span<const std::string> names,
    std::optional<size_t> fallback) const {
  StringKind kind;
  kind.expected = "one of ";
  for (const std::string& name : names) {
    kind.expected += (&name == names.data() ? "\"" : ", \"") + name + "\"";
  }
  const std::string name = get_scalar(
      *node_,
      key,
      kind,
      fallback ? std::optional(names[*fallback]) : std::nullopt);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::string nearest = meant_choice(name, names);
    fail(
        key,
        "expected " + kind.expected +
            (nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?"));
  }
  return static_cast<size_t>(found - names.begin());
}

ConfigReader ConfigReader::get_object(std::string_view key) const {
  static const json kEmpty = json::object();
  const json* value = node_->find(key);
  if (value != nullptr && *value == "") { // as "model.lora=" clears it
    value = nullptr;
  }
  TESSERA_CHECK(
      value == nullptr || value->is_object(),
      "{} is {}; expected an object",
      node_->where(key),
      found(*value));
  Node::Child& child = node_->child(key, false);
  if (child.nodes.empty()) {
    child.nodes.push_back(
        node_->nested(key, value == nullptr ? kEmpty : *value));
  }
  return ConfigReader(child.nodes.front());
}

std::vector<ConfigReader> ConfigReader::get_objects(
    std::string_view key) const {
  const json* value = node_->find(key);
  TESSERA_CHECK(
      value == nullptr || value->is_array(),
      "{} is {}; expected an array of objects",
      node_->where(key),
      found(*value));
  Node::Child& child = node_->child(key, true);
  for (size_t i = child.nodes.size(); value != nullptr && i < value->size();
       ++i) {
    const std::string element = formatted("{}.{}", key, i);
    const json& object = (*value)[i];
    TESSERA_CHECK(
        object.is_object(),
        "{} is {}; expected an object",
        node_->where(element),
        found(object));
    child.nodes.push_back(node_->nested(element, object));
  }
  std::vector<ConfigReader> readers;
  for (const auto& node : child.nodes) {
    readers.push_back(ConfigReader(node));
  }
  return readers;
}

void ConfigReader::fail(std::string_view key, std::string_view expected) const {
  const json* value = node_->find(key);
  TESSERA_FAIL(
      "{} is {}; {}",
      node_->where(key),
      value == nullptr ? "absent" : found(*value),
      expected);
}

void ConfigReader::run_check(const std::function<void()>& check) const {
  try {
    check();
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string path = text.substr(0, text.find_first_of(" :"));
    throw Error(node_->document->origin_of(path) + ": " + text);
  }
}

void ConfigReader::finish(std::span<const ForeignKey> foreign) const {
  std::string errors;
  node_->add_unknown(*node_, foreign, errors);
  TESSERA_CHECK(errors.empty(), "{}", errors);
}

ordered_json ConfigReader::resolved() const {
  return node_->resolve();
}

} // namespace tessera::runtime
