// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_schema.h"

#include "tessera/runtime/core/config_values.h"

namespace tessera::runtime {

using nlohmann::ordered_json;

namespace {

/// Null counts as an absent key.
ordered_json or_null(const OptionField& field, ordered_json types) {
  if (!field.key.required) {
    types.push_back("null");
  }
  return types.size() == 1 ? types.front() : types;
}

ordered_json limited(ordered_json schema, const IntRange& range) {
  if (range.min != IntRange{}.min) {
    schema["minimum"] = range.min;
  }
  if (range.max != IntRange{}.max) {
    schema["maximum"] = range.max;
  }
  return schema;
}

ordered_json limited(ordered_json schema, const DoubleRange& range) {
  if (range.min != DoubleRange{}.min) {
    schema[range.open_min ? "exclusiveMinimum" : "minimum"] = range.min;
  }
  if (range.max != DoubleRange{}.max) {
    schema[range.open_max ? "exclusiveMaximum" : "maximum"] = range.max;
  }
  return schema;
}

template <typename Value>
ordered_json json_of(const std::optional<Value>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

} // namespace

OptionSchema::OptionSchema() {
  open_.push_back(
      {{{"type", "object"}, {"properties", ordered_json::object()}}, "", ""});
}

ordered_json OptionSchema::schema() const {
  ordered_json schema = open_.front().schema;
  schema
      [schema.contains("allOf") ? "unevaluatedProperties"
                                : "additionalProperties"] = false;
  return schema;
}

void OptionSchema::add(
    const OptionField& field,
    const std::string& values,
    ordered_json property,
    const ordered_json& fallback) {
  Open& around = open_.back();
  OptionRow row{
      around.path + field.key.name, values, "", field.doc, around.only_for};
  property["description"] = field.doc;
  if (field.key.required) {
    around.schema["required"].push_back(field.key.name);
  } else if (!fallback.is_null()) {
    property["default"] = fallback;
    row.fallback = fallback.dump();
  }
  around.schema["properties"][field.key.name] = std::move(property);
  rows_.push_back(std::move(row));
}

void OptionSchema::on_bool(
    const OptionField& field,
    std::optional<bool>& value) {
  add(field,
      detail::BoolKind().expected,
      {{"type", or_null(field, {"boolean"})}},
      json_of(value));
}

void OptionSchema::on_int(
    const OptionField& field,
    std::optional<int64_t>& value) {
  add(field,
      detail::in_range("an integer", field.integers),
      limited({{"type", or_null(field, {"integer"})}}, field.integers),
      json_of(value));
}

void OptionSchema::on_bytes(
    const OptionField& field,
    std::optional<int64_t>& value) {
  ordered_json property = limited(
      {{"type", or_null(field, {"integer", "string"})}}, field.integers);
  property["pattern"] = "^[0-9.]+ *([kKmMgGtT][iI]?)?[bB]$";
  add(field,
      detail::in_range("bytes,", field.integers),
      std::move(property),
      json_of(value));
}

void OptionSchema::on_number(
    const OptionField& field,
    std::optional<double>& value) {
  std::string values = detail::in_range("a number", field.numbers);
  ordered_json types = ordered_json::array({"number"});
  ordered_json property;
  if (field.word != nullptr) {
    values += ", or `\"" + std::string(field.word) + "\"`";
    types.push_back("string");
    property["pattern"] = "^" + std::string(field.word) + "$";
  }
  property["type"] = or_null(field, types);
  add(field,
      values,
      limited(std::move(property), field.numbers),
      value                   ? ordered_json(*value)
      : field.word != nullptr ? ordered_json(field.word)
                              : ordered_json());
}

void OptionSchema::on_string(
    const OptionField& field,
    std::optional<std::string>& value) {
  add(field,
      "a string",
      {{"type", or_null(field, {"string"})}},
      json_of(value));
}

void OptionSchema::on_strings(
    const OptionField& field,
    std::vector<std::string>& value) {
  ordered_json types = ordered_json::array({"array"});
  if (field.one_or_many) {
    types.push_back("string");
  }
  ordered_json fallback = value;
  if (field.one_or_many && value.size() == 1) {
    fallback = value.front();
  }
  add(field,
      field.one_or_many ? "a string, or an array of strings"
                        : "an array of strings",
      {{"type", or_null(field, types)}, {"items", {{"type", "string"}}}},
      fallback);
}

void OptionSchema::on_ints(
    const OptionField& field,
    std::vector<int64_t>& value) {
  add(field,
      "an array, each element " +
          detail::in_range("an integer", field.integers),
      {{"type", or_null(field, {"array"})},
       {"items", limited({{"type", "integer"}}, field.integers)}},
      value);
}

void OptionSchema::on_numbers(
    const OptionField& field,
    std::vector<double>& value) {
  ordered_json property = {
      {"type", or_null(field, {"array"})},
      {"items", limited({{"type", "number"}}, field.numbers)}};
  if (field.count != 0) {
    property["minItems"] = field.count;
    property["maxItems"] = field.count;
  }
  add(field,
      (field.count == 2 ? "two numbers, each " : "an array, each element ") +
          detail::in_range("a number", field.numbers),
      std::move(property),
      value);
}

void OptionSchema::on_choice(
    const OptionField& field,
    const std::vector<std::string>& names,
    std::optional<size_t>& chosen,
    bool /*is_set*/) {
  std::string values;
  for (const std::string& name : names) {
    values += (values.empty() ? "`" : ", `") + name + "`";
  }
  ordered_json allowed = names;
  if (!field.key.required) {
    allowed.push_back(nullptr);
  }
  add(field,
      values,
      {{"enum", allowed}},
      chosen ? ordered_json(names[*chosen]) : ordered_json());
}

bool OptionSchema::begin_branch(
    const OptionChoice& choice,
    const std::vector<std::string>& names) {
  ordered_json condition = {{"properties", {{choice.key, {{"enum", names}}}}}};
  if (std::find(names.begin(), names.end(), choice.name) == names.end()) {
    condition["required"] = ordered_json::array({choice.key});
  } else { // holds where the key is absent, too
    condition["properties"][choice.key]["enum"].push_back(nullptr);
  }
  open_.push_back(
      {{{"if", condition}, {"properties", ordered_json::object()}},
       "",
       open_.back().path,
       names});
  return true;
}

void OptionSchema::end_branch() {
  ordered_json branch = std::move(open_.back().schema);
  open_.pop_back();
  ordered_json condition = std::move(branch["if"]);
  branch.erase("if");
  if (!branch["properties"].empty()) {
    open_.back().schema["allOf"].push_back(
        {{"if", std::move(condition)}, {"then", std::move(branch)}});
  }
}

void OptionSchema::open(
    const OptionField& field,
    const char* type,
    const std::string& mark) {
  ordered_json schema = {{"type", or_null(field, {type})}};
  const Open& around = open_.back();
  if (*field.doc != '\0') {
    schema["description"] = field.doc;
  }
  open_.push_back(
      {std::move(schema),
       field.key.name,
       around.path + field.key.name + mark + ".",
       around.only_for});
}

void OptionSchema::close() {
  Open done = std::move(open_.back());
  open_.pop_back();
  Open& around = open_.back();
  if (done.key.empty()) {
    around.schema["items"] = std::move(done.schema);
  } else {
    around.schema["properties"][done.key] = std::move(done.schema);
  }
}

bool OptionSchema::has_object(OptionKey /*key*/, bool /*has_value*/) {
  return true;
}

void OptionSchema::begin_object(const OptionField& field) {
  if (*field.doc != '\0') {
    rows_.push_back(
        {open_.back().path + field.key.name,
         "an object",
         "",
         field.doc,
         open_.back().only_for});
  }
  open(field, "object", "");
  open_.back().schema["properties"] = ordered_json::object();
}

void OptionSchema::end_object() {
  ordered_json& schema = open_.back().schema;
  schema
      [schema.contains("allOf") ? "unevaluatedProperties"
                                : "additionalProperties"] = false;
  close();
}

size_t OptionSchema::begin_list(const OptionField& field, size_t /*size*/) {
  rows_.push_back(
      {open_.back().path + field.key.name,
       "an array of objects",
       "[]",
       field.doc,
       open_.back().only_for});
  open(field, "array", "[]");
  return 1;
}

void OptionSchema::begin_element(size_t /*index*/) {
  const Open& list = open_.back();
  open_.push_back(
      {{{"type", "object"}, {"properties", ordered_json::object()}},
       "",
       list.path,
       list.only_for});
}

void OptionSchema::end_list() {
  close();
}

} // namespace tessera::runtime
