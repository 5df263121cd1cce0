// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_fields.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/runtime/core/option_values.h"

namespace tessera::runtime {

namespace {

/// What of it fits into an int.
IntRange int_range(const IntRange& range) {
  using Limits = std::numeric_limits<int>;
  return {
      std::max<int64_t>(range.min, Limits::min()),
      std::min<int64_t>(range.max, Limits::max())};
}

OptionField integer(
    OptionKey key,
    const char* doc,
    const IntRange& range,
    OptionKind kind = OptionKind::kInt) {
  return {.key = key, .doc = doc, .kind = kind, .integers = range};
}

OptionField number(OptionKey key, const char* doc, const DoubleRange& range) {
  return {
      .key = key, .doc = doc, .kind = OptionKind::kNumber, .numbers = range};
}

OptionField array_of(OptionField field) {
  field.shape = OptionShape::kArray;
  return field;
}

OptionField map_of(OptionField field) {
  field.shape = OptionShape::kMap;
  return field;
}

} // namespace

template <typename Value>
void OptionFields::visit(const OptionField& field, Value& value) {
  nlohmann::json seen = json_of(value);
  on_value(field, seen);
  value = value_of<Value>(seen);
}

void OptionFields::field(OptionKey key, bool& value, const char* doc) {
  visit({key, doc}, value);
}

void OptionFields::field(
    OptionKey key,
    std::optional<bool>& value,
    const char* doc) {
  visit({key, doc}, value);
}

void OptionFields::field(
    OptionKey key,
    int& value,
    IntRange range,
    const char* doc) {
  visit(integer(key, doc, int_range(range)), value);
}

void OptionFields::field(
    OptionKey key,
    int64_t& value,
    IntRange range,
    const char* doc) {
  visit(integer(key, doc, range), value);
}

void OptionFields::field(
    OptionKey key,
    std::optional<int64_t>& value,
    IntRange range,
    const char* doc) {
  visit(integer(key, doc, range), value);
}

void OptionFields::field(
    OptionKey key,
    double& value,
    DoubleRange range,
    const char* doc) {
  visit(number(key, doc, range), value);
}

void OptionFields::field(
    OptionKey key,
    std::optional<double>& value,
    DoubleRange range,
    const char* doc,
    const char* word) {
  OptionField field = number(key, doc, range);
  field.word = word;
  visit(field, value);
}

void OptionFields::field(OptionKey key, std::string& value, const char* doc) {
  visit({key, doc, OptionKind::kString}, value);
}

void OptionFields::field(
    OptionKey key,
    std::optional<std::string>& value,
    const char* doc) {
  visit({key, doc, OptionKind::kString}, value);
}

void OptionFields::field(
    OptionKey key,
    std::filesystem::path& value,
    const char* doc) {
  std::string text = value.string();
  field(key, text, doc);
  value = text;
}

void OptionFields::field(
    OptionKey key,
    std::vector<std::string>& value,
    const char* doc) {
  visit(array_of({key, doc, OptionKind::kString}), value);
}

void OptionFields::field(
    OptionKey key,
    std::vector<int64_t>& value,
    IntRange range,
    const char* doc) {
  visit(array_of(integer(key, doc, range)), value);
}

void OptionFields::field(
    OptionKey key,
    std::vector<int>& value,
    IntRange range,
    const char* doc) {
  visit(array_of(integer(key, doc, int_range(range))), value);
}

void OptionFields::field(
    OptionKey key,
    std::vector<double>& value,
    DoubleRange range,
    const char* doc) {
  visit(array_of(number(key, doc, range)), value);
}

void OptionFields::pair(
    OptionKey key,
    double& first,
    double& second,
    DoubleRange range,
    const char* doc) {
  OptionField field = array_of(number(key, doc, range));
  field.count = 2;
  std::vector<double> both{first, second};
  visit(field, both);
  first = both[0];
  second = both[1];
}

void OptionFields::triple(
    OptionKey key,
    double& first,
    double& second,
    double& third,
    DoubleRange range,
    const char* doc) {
  OptionField field = array_of(number(key, doc, range));
  field.count = 3;
  std::vector<double> all{first, second, third};
  visit(field, all);
  first = all[0];
  second = all[1];
  third = all[2];
}

void OptionFields::one_or_many(
    OptionKey key,
    std::vector<std::string>& value,
    const char* doc) {
  visit({key, doc, OptionKind::kString, OptionShape::kOneOrMany}, value);
}

void OptionFields::one_or_array(
    OptionKey key,
    std::string& one,
    std::vector<std::string>& array,
    const char* doc) {
  nlohmann::json seen = one.empty() ? json_of(array) : json_of(one);
  on_value({key, doc, OptionKind::kString, OptionShape::kOneOrArray}, seen);
  const bool is_one = seen.is_string();
  one = is_one ? seen.get<std::string>() : "";
  array = is_one ? std::vector<std::string>()
                 : seen.get<std::vector<std::string>>();
}

void OptionFields::field(
    OptionKey key,
    std::map<std::string, int64_t>& value,
    IntRange range,
    const char* doc) {
  visit(map_of(integer(key, doc, range)), value);
}

void OptionFields::field(
    OptionKey key,
    std::map<std::string, double>& value,
    DoubleRange range,
    const char* doc) {
  visit(map_of(number(key, doc, range)), value);
}

void OptionFields::bytes(
    OptionKey key,
    int64_t& value,
    int64_t min,
    const char* doc) {
  visit(integer(key, doc, {.min = min}, OptionKind::kBytes), value);
}

void OptionFields::bytes(
    OptionKey key,
    std::optional<int64_t>& value,
    int64_t min,
    const char* doc) {
  visit(integer(key, doc, {.min = min}, OptionKind::kBytes), value);
}

void OptionFields::choose(
    const OptionField& field,
    std::optional<std::string>& name,
    const std::string& nameless) {
  // A value without a name is none of the names.
  nlohmann::json seen =
      name || nameless.empty() ? json_of(name) : nlohmann::json(nameless);
  on_value(field, seen);
  name = value_of<std::optional<std::string>>(seen);
}

} // namespace tessera::runtime
