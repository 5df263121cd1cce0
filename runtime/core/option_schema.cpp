// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_schema.h"

#include <utility>

#include "tessera/runtime/core/config_values.h"

namespace tessera::runtime {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// "an integer of at least 1", as in errors; names of choices in backticks.
std::string values_of(const OptionField& field) {
  const auto each = [&](const std::string& text) {
    return field.shape == OptionShape::kArray ? "an array, each element " + text
           : field.shape == OptionShape::kMap ? "an object, each value " + text
                                              : text;
  };
  std::string text;
  switch (field.kind) {
    case OptionKind::kBool:
      return "true or false";
    case OptionKind::kBytes:
      return detail::in_range("bytes", field.integers);
    case OptionKind::kInt:
      return each(detail::in_range("an integer", field.integers));
    case OptionKind::kNumber:
      text = detail::in_range("a number", field.numbers);
      if (field.word != nullptr) {
        text += ", or `\"" + std::string(field.word) + "\"`";
      }
      if (field.count > 0) {
        return std::string(numbers_text(field.count)) + ", each " + text;
      }
      return each(text);
    case OptionKind::kString:
      return field.shape == OptionShape::kOne ? "a string"
             : field.shape == OptionShape::kArray
                 ? "an array of strings"
                 : "a string, or an array of strings";
    case OptionKind::kChoice:
      break;
  }
  for (const std::string& name : field.names) {
    text += (text.empty() ? "`" : ", `") + name + "`";
  }
  return text;
}

/// The JSON types of a value, or of an element.
ordered_json types_of(const OptionField& field) {
  switch (field.kind) {
    case OptionKind::kBool:
      return ordered_json::array({"boolean"});
    case OptionKind::kInt:
      return ordered_json::array({"integer"});
    case OptionKind::kBytes:
      return ordered_json::array({"integer", "string"});
    case OptionKind::kNumber:
      return field.word == nullptr ? ordered_json::array({"number"})
                                   : ordered_json::array({"number", "string"});
    default:
      return ordered_json::array({"string"});
  }
}

/// A type alone, or an array of several. Null counts as an absent key.
ordered_json type_keyword(const OptionKey& key, ordered_json types) {
  if (!key.required) {
    types.push_back("null");
  }
  return types.size() == 1 ? types.front() : types;
}

template <typename Range>
void add_limits(ordered_json& schema, const Range& range) {
  bool open_min = false;
  bool open_max = false;
  if constexpr (requires { range.open_min; }) {
    open_min = range.open_min;
    open_max = range.open_max;
  }
  if (range.min != Range{}.min) {
    schema[open_min ? "exclusiveMinimum" : "minimum"] = range.min;
  }
  if (range.max != Range{}.max) {
    schema[open_max ? "exclusiveMaximum" : "maximum"] = range.max;
  }
}

/// The ranges of a value, or of an element.
void add_limits(ordered_json& schema, const OptionField& field) {
  add_limits(schema, field.integers);
  add_limits(schema, field.numbers);
  if (field.kind == OptionKind::kBytes) {
    schema["pattern"] = "^[0-9.]+ *([kKmMgGtT][iI]?)?[bB]$";
  } else if (field.word != nullptr) {
    schema["pattern"] = "^" + std::string(field.word) + "$";
  }
}

ordered_json property_of(const OptionField& field) {
  ordered_json property;
  if (field.kind == OptionKind::kChoice) {
    property["enum"] = field.names;
    if (!field.key.required) {
      property["enum"].push_back(nullptr);
    }
    return property;
  }
  ordered_json types = types_of(field);
  if (field.shape == OptionShape::kOne) {
    property["type"] = type_keyword(field.key, std::move(types));
    add_limits(property, field);
    return property;
  }
  ordered_json element = {{"type", types.front()}};
  add_limits(element, field);
  if (field.shape == OptionShape::kMap) {
    property["type"] = type_keyword(field.key, ordered_json::array({"object"}));
    property["additionalProperties"] = std::move(element);
    return property;
  }
  if (field.shape == OptionShape::kArray) {
    types.clear();
  }
  types.push_back("array");
  property["type"] = type_keyword(field.key, std::move(types));
  property["items"] = std::move(element);
  if (field.count > 0) {
    property["minItems"] = field.count;
    property["maxItems"] = field.count;
  }
  return property;
}

/// What a key has that is absent; null if nothing.
ordered_json default_of(const OptionField& field, const json& value) {
  if (field.key.required) {
    return {};
  }
  if (value.is_null() && field.word != nullptr) {
    return field.word;
  }
  return field.shape == OptionShape::kOneOrMany && value.size() == 1
             ? value.front()
             : value;
}

/// Records all fields, those of every branch too.
class OptionSchema final : public OptionFields {
 public:
  OptionSchema() {
    open("", "", {});
  }

  OptionDescription description() {
    close_object(open_.back().schema);
    return {std::move(open_.back().schema), std::move(rows_)};
  }

 private:
  /// An object, array or branch around the next field.
  struct Open {
    ordered_json schema;
    std::string key; ///< in the object around it; empty for an element
    std::string path; ///< with "." behind it
    std::vector<std::string> only_for;
    bool may_be_absent = false; ///< an object whose absence means something
  };

  void on_value(const OptionField& field, json& value) override {
    ordered_json property = property_of(field);
    property["description"] = field.doc;
    const ordered_json fallback = default_of(field, value);
    if (!fallback.is_null()) {
      property["default"] = fallback;
    }
    add_row(field, values_of(field), fallback);
    ordered_json& around = open_.back().schema;
    around["properties"][field.key.name] = std::move(property);
    if (field.key.required) {
      around["required"].push_back(field.key.name);
    }
  }

  bool begin_branch(
      const OptionChoice& choice,
      const std::vector<std::string>& names) override {
    ordered_json condition = {
        {"properties", {{choice.key, {{"enum", names}}}}}};
    if (std::find(names.begin(), names.end(), choice.name) == names.end()) {
      condition["required"] = ordered_json::array({choice.key});
    } else { // holds where the key is absent, too
      condition["properties"][choice.key]["enum"].push_back(nullptr);
    }
    open("", open_.back().path, names);
    open_.back().schema = {
        {"if", std::move(condition)}, {"properties", ordered_json::object()}};
    return true;
  }
  void end_branch() override {
    ordered_json branch = std::move(open_.back().schema);
    open_.pop_back();
    ordered_json condition = std::move(branch["if"]);
    branch.erase("if");
    if (!branch["properties"].empty()) {
      open_.back().schema["allOf"].push_back(
          {{"if", std::move(condition)}, {"then", std::move(branch)}});
    }
  }

  bool has_object(OptionKey /*key*/, bool /*has_value*/) override {
    may_be_absent_ = true;
    return true;
  }
  void begin_object(const OptionField& field) override {
    if (*field.doc != '\0') {
      add_row(field, "an object", {});
    }
    open(
        field.key.name,
        open_.back().path + field.key.name + ".",
        open_.back().only_for);
    describe(field, "object");
    open_.back().may_be_absent = std::exchange(may_be_absent_, false);
  }
  void end_object() override {
    Open done = std::move(open_.back());
    open_.pop_back();
    close_object(done.schema);
    // An absent object is an empty one.
    if (!done.may_be_absent && !done.key.empty() &&
        done.schema.contains("required")) {
      open_.back().schema["required"].push_back(done.key);
    }
    attach(std::move(done));
  }
  size_t begin_list(const OptionField& field, size_t /*size*/) override {
    add_row(field, "an array of objects", ordered_json::array());
    open(
        field.key.name,
        open_.back().path + field.key.name + "[].",
        open_.back().only_for);
    open_.back().schema = ordered_json::object();
    describe(field, "array");
    return 1;
  }
  void begin_element(size_t /*index*/) override {
    open("", open_.back().path, open_.back().only_for);
  }
  void end_list() override {
    Open done = std::move(open_.back());
    open_.pop_back();
    attach(std::move(done));
  }

  void add_row(
      const OptionField& field,
      const std::string& values,
      const ordered_json& fallback) {
    const Open& around = open_.back();
    rows_.push_back(
        {around.path + field.key.name,
         values,
         fallback.is_null() ? "" : fallback.dump(),
         field.doc,
         around.only_for});
  }

  void open(
      const std::string& key,
      const std::string& path,
      const std::vector<std::string>& only_for) {
    ordered_json schema = {
        {"type", "object"}, {"properties", ordered_json::object()}};
    open_.push_back({std::move(schema), key, path, only_for});
  }
  void describe(const OptionField& field, const char* type) {
    ordered_json& schema = open_.back().schema;
    schema["type"] = type_keyword(field.key, ordered_json::array({type}));
    if (*field.doc != '\0') {
      schema["description"] = field.doc;
    }
  }
  void attach(Open done) {
    ordered_json& around = open_.back().schema;
    if (done.key.empty()) {
      around["items"] = std::move(done.schema);
    } else {
      around["properties"][done.key] = std::move(done.schema);
    }
  }
  static void close_object(ordered_json& schema) {
    schema
        [schema.contains("allOf") ? "unevaluatedProperties"
                                  : "additionalProperties"] = false;
  }

  std::vector<Open> open_;
  std::vector<OptionRow> rows_;
  bool may_be_absent_ = false; ///< the object that opens next
};

} // namespace

std::vector<ordered_json> schemas_at(
    const ordered_json& schema,
    const std::string& path) {
  if (path.empty()) {
    return {schema};
  }
  const size_t end = std::min(path.find('.'), path.size());
  const std::string rest = path.substr(std::min(end + 1, path.size()));
  std::string key = path.substr(0, end);
  const bool is_element = key.ends_with("[]");
  if (is_element) {
    key.resize(key.size() - 2);
  }
  std::vector<ordered_json> found;
  const auto add = [&](const std::vector<ordered_json>& more) {
    for (const ordered_json& one : more) {
      if (std::find(found.begin(), found.end(), one) == found.end()) {
        found.push_back(one);
      }
    }
  };
  const auto property = schema.value("properties", ordered_json::object())
                            .value(key, ordered_json());
  if (!property.is_null()) {
    add(schemas_at(is_element ? property.at("items") : property, rest));
  }
  for (const ordered_json& branch :
       schema.value("allOf", ordered_json::array())) {
    add(schemas_at(branch.at("then"), path));
  }
  return found;
}

OptionDescription describe_list(const OptionList& list) {
  OptionSchema fields;
  list(fields);
  return fields.description();
}

} // namespace tessera::runtime
