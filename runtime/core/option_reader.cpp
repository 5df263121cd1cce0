// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_reader.h"

#include <nlohmann/json.hpp>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/option_values.h"

namespace tessera::runtime {

namespace {

using nlohmann::json;

class OptionReader final : public OptionFields {
 public:
  explicit OptionReader(const ConfigReader& reader) : open_{reader} {}

 private:
  void on_value(const OptionField& field, json& value) override {
    try {
      read_value(field, value);
    } catch (const Error& error) {
      throw Error(error.what() + explanation(field));
    }
  }

  void read_value(const OptionField& field, json& value) const {
    const char* const key = field.key.name;
    if (field.word != nullptr &&
        (value.is_null() || open_.back().contains(key))) {
      value =
          json_of(open_.back().get_double_or(key, field.word, field.numbers));
    } else if (field.key.required) {
      value = read(field, json());
    } else if (!value.is_null() || open_.back().contains(key)) {
      value = read(field, value);
    }
    if (field.count > 0 && value.size() != static_cast<size_t>(field.count)) {
      open_.back().fail(
          key, std::string("expected ") + numbers_text(field.count));
    }
  }

  json read(const OptionField& field, const json& fallback) const {
    const ConfigReader& reader = open_.back();
    const char* const key = field.key.name;
    using Ints = std::optional<std::vector<int64_t>>;
    using Numbers = std::optional<std::vector<double>>;
    using Strings = std::optional<std::vector<std::string>>;
    using IntMap = std::optional<std::map<std::string, int64_t>>;
    using NumberMap = std::optional<std::map<std::string, double>>;
    const bool is_array = field.shape == OptionShape::kArray;
    if (field.shape == OptionShape::kMap) {
      return field.kind == OptionKind::kInt
                 ? json(reader.get_int_map(
                       key, field.integers, value_of<IntMap>(fallback)))
                 : json(reader.get_double_map(
                       key, field.numbers, value_of<NumberMap>(fallback)));
    }
    switch (field.kind) {
      case OptionKind::kBool:
        return reader.get_bool(key, value_of<std::optional<bool>>(fallback));
      case OptionKind::kInt:
        if (is_array) {
          return reader.get_ints(key, field.integers, value_of<Ints>(fallback));
        }
        return reader.get_int(
            key, field.integers, value_of<std::optional<int64_t>>(fallback));
      case OptionKind::kBytes:
        return reader.get_bytes(
            key, field.integers, value_of<std::optional<int64_t>>(fallback));
      case OptionKind::kNumber:
        if (is_array) {
          return reader.get_doubles(
              key, field.numbers, value_of<Numbers>(fallback));
        }
        return reader.get_double(
            key, field.numbers, value_of<std::optional<double>>(fallback));
      case OptionKind::kString:
        if (field.shape == OptionShape::kOneOrMany) {
          if (fallback.is_null() && !reader.contains(key)) {
            return reader.get_string(key); // an error: it is required
          }
          return reader.get_string_or_strings(
              key,
              value_of<Strings>(fallback).value_or(std::vector<std::string>()));
        }
        if (field.shape == OptionShape::kOneOrArray) {
          return read_one_or_array(reader, key, fallback);
        }
        if (is_array) {
          return reader.get_strings(key, value_of<Strings>(fallback));
        }
        return reader.get_string(
            key, value_of<std::optional<std::string>>(fallback));
      case OptionKind::kChoice:
        break;
    }
    std::vector<std::pair<std::string, std::string>> names;
    for (const std::string& name : field.names) {
      names.emplace_back(name, name);
    }
    return reader.get_enum(
        key, names, value_of<std::optional<std::string>>(fallback));
  }

  static json read_one_or_array(
      const ConfigReader& reader,
      const char* key,
      const json& fallback) {
    if (reader.contains(key)) {
      const auto texts = reader.get_string_or_strings(key, {});
      return reader.is_string(key) ? json(texts.front()) : json(texts);
    }
    if (fallback.is_string()) {
      return reader.get_string(key, fallback.get<std::string>());
    }
    return reader.get_strings(
        key, value_of<std::optional<std::vector<std::string>>>(fallback));
  }

  /// "model.lora=" on the command line, as "model.config=" clears a text.
  bool is_cleared(const char* key) const {
    const ConfigReader& reader = open_.back();
    return reader.contains(key) && reader.is_string(key) &&
           reader.get_string(key).empty();
  }

  bool has_object(OptionKey key, bool has_value) override {
    return (open_.back().contains(key.name) && !is_cleared(key.name)) ||
           has_value;
  }
  void begin_object(const OptionField& field) override {
    open_.push_back(open_.back().get_object(field.key.name));
  }
  void end_object() override {
    open_.pop_back();
  }
  size_t begin_list(const OptionField& field, size_t /*size*/) override {
    lists_.push_back(open_.back().get_objects(field.key.name));
    return lists_.back().size();
  }
  void begin_element(size_t index) override {
    open_.push_back(lists_.back()[index]);
  }
  void end_list() override {
    lists_.pop_back();
  }

  std::vector<ConfigReader> open_; ///< the objects around the next field
  std::vector<std::vector<ConfigReader>> lists_;
};

} // namespace

void read_list(const ConfigReader& reader, const OptionList& list) {
  OptionReader fields(reader);
  list(fields);
}

} // namespace tessera::runtime
