// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/config.h"

#include <nlohmann/json.hpp>

#include "tessera/runtime/core/config_node.h"
#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_values.h"

namespace tessera::runtime {

using nlohmann::json;
using nlohmann::ordered_json;

/// Gives fields the values of a configuration.
class ConfigReader::Fields final : public OptionFields {
 public:
  explicit Fields(std::shared_ptr<Node> node) : open_{std::move(node)} {}

 private:
  void on_value(const OptionField& field, json& value) override {
    Node& node = *open_.back();
    const json* given = node.find(field.key.name);
    const bool is_empty =
        given != nullptr && *given == "" && !field.key.required;
    const bool is_map = field.shape == OptionShape::kMap;
    if (is_empty && field.count == 0 &&
        (is_map || field.shape == OptionShape::kArray)) {
      value = is_map ? json::object() : json::array(); // "model.classes="
      node.resolved[field.key.name] = value;
      return;
    }
    try {
      value = node.read(field, value);
    } catch (const Error& error) {
      throw Error(
          error.what() +
          (is_empty
               ? formatted("; {}=null clears it", node.path_of(field.key.name))
               : std::string()) +
          explanation(field));
    }
  }

  bool has_object(OptionKey key, bool has_value) override {
    const json* value = open_.back()->find(key.name);
    if (value != nullptr && *value == "") { // "model.lora=" clears it
      open_.back()->resolved[key.name] = "";
      value = nullptr;
    }
    return value != nullptr || has_value;
  }
  void begin_object(const OptionField& field) override {
    open_.push_back(open_.back()->nested(field.key.name));
  }
  void end_object() override {
    open_.pop_back();
  }
  size_t begin_list(const OptionField& field, size_t /*size*/) override {
    Node& node = *open_.back();
    const json* given = node.find(field.key.name);
    if (given != nullptr && *given == "") { // clears it, too
      node.resolved[field.key.name] = json::array();
      lists_.emplace_back();
    } else {
      lists_.push_back(node.elements(field.key.name));
    }
    return lists_.back().size();
  }
  void begin_element(size_t index) override {
    open_.push_back(lists_.back()[index]);
  }
  void end_list() override {
    lists_.pop_back();
  }

  Node::Nodes open_; ///< the objects around the next field
  std::vector<Node::Nodes> lists_;
};

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
      detail::found(root));
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

void ConfigReader::read(const OptionList& list) const {
  Fields fields(node_);
  list(fields);
}

bool ConfigReader::contains(std::string_view key) const {
  return node_->find(key) != nullptr;
}

ConfigReader ConfigReader::get_object(std::string_view key) const {
  return ConfigReader(node_->nested(key));
}

void ConfigReader::fail(std::string_view key, std::string_view expected) const {
  const json* value = node_->find(key);
  TESSERA_FAIL(
      "{} is {}; {}",
      node_->where(key),
      value == nullptr ? "absent" : detail::found(*value),
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

std::vector<UnknownKey> ConfigReader::unknown_keys(
    std::span<const ForeignKey> foreign) const {
  std::vector<UnknownKey> unknown;
  node_->add_unknown(*node_, foreign, unknown);
  return unknown;
}

void ConfigReader::finish(std::span<const ForeignKey> foreign) const {
  std::string errors;
  for (const UnknownKey& key : unknown_keys(foreign)) {
    errors += (errors.empty() ? "" : "\n") + key.place() +
              " is not a known key; " + key.remedy;
  }
  TESSERA_CHECK(errors.empty(), "{}", errors);
}

ordered_json ConfigReader::resolved() const {
  return node_->resolve();
}

void ConfigReader::resolve(std::string_view key, const json& value) const {
  node_->resolved[std::string(key)] = value;
}

} // namespace tessera::runtime
