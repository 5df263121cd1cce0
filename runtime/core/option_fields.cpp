// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/option_fields.h"

#include <limits>

namespace tessera::runtime {

namespace {

/// Lets `visit` see a value that is always there as an optional one.
template <typename Seen, typename Value, typename Visit>
void as_optional(Value& value, const Visit& visit) {
  std::optional<Seen> seen(value);
  visit(seen);
  value = static_cast<Value>(*seen);
}

/// What of it fits into an int.
IntRange int_range(const IntRange& range) {
  using Limits = std::numeric_limits<int>;
  return {
      std::max<int64_t>(range.min, Limits::min()),
      std::min<int64_t>(range.max, Limits::max())};
}

} // namespace

void OptionFields::field(OptionKey key, bool& value, const char* doc) {
  as_optional<bool>(value, [&](auto& seen) { on_bool({key, doc}, seen); });
}

void OptionFields::field(
    OptionKey key,
    int& value,
    IntRange range,
    const char* doc) {
  as_optional<int64_t>(value, [&](auto& seen) {
    on_int({key, doc, int_range(range)}, seen);
  });
}

void OptionFields::field(
    OptionKey key,
    int64_t& value,
    IntRange range,
    const char* doc) {
  as_optional<int64_t>(value, [&](auto& seen) {
    on_int({key, doc, range}, seen);
  });
}

void OptionFields::field(
    OptionKey key,
    std::optional<int64_t>& value,
    IntRange range,
    const char* doc) {
  on_int({key, doc, range}, value);
}

void OptionFields::field(
    OptionKey key,
    double& value,
    DoubleRange range,
    const char* doc) {
  as_optional<double>(value, [&](auto& seen) {
    on_number({key, doc, {}, range}, seen);
  });
}

void OptionFields::field(
    OptionKey key,
    std::optional<double>& value,
    DoubleRange range,
    const char* doc,
    const char* word) {
  on_number({key, doc, {}, range, word}, value);
}

void OptionFields::field(OptionKey key, std::string& value, const char* doc) {
  as_optional<std::string>(value, [&](auto& seen) {
    on_string({key, doc}, seen);
  });
}

void OptionFields::field(
    OptionKey key,
    std::optional<std::string>& value,
    const char* doc) {
  on_string({key, doc}, value);
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
  on_strings({key, doc}, value);
}

void OptionFields::field(
    OptionKey key,
    std::vector<int64_t>& value,
    IntRange range,
    const char* doc) {
  on_ints({key, doc, range}, value);
}

void OptionFields::field(
    OptionKey key,
    std::vector<int>& value,
    IntRange range,
    const char* doc) {
  std::vector<int64_t> seen(value.begin(), value.end());
  on_ints({key, doc, int_range(range)}, seen);
  value.clear();
  for (const int64_t element : seen) {
    value.push_back(static_cast<int>(element));
  }
}

void OptionFields::field(
    OptionKey key,
    std::vector<double>& value,
    DoubleRange range,
    const char* doc) {
  on_numbers({key, doc, {}, range}, value);
}

void OptionFields::pair(
    OptionKey key,
    double& first,
    double& second,
    DoubleRange range,
    const char* doc) {
  std::vector<double> both{first, second};
  on_numbers({.key = key, .doc = doc, .numbers = range, .count = 2}, both);
  first = both[0];
  second = both[1];
}

void OptionFields::one_or_many(
    OptionKey key,
    std::vector<std::string>& value,
    const char* doc) {
  on_strings({.key = key, .doc = doc, .one_or_many = true}, value);
}

void OptionFields::bytes(
    OptionKey key,
    int64_t& value,
    int64_t min,
    const char* doc) {
  as_optional<int64_t>(value, [&](auto& seen) {
    on_bytes({key, doc, {.min = min}}, seen);
  });
}

void OptionFields::bytes(
    OptionKey key,
    std::optional<int64_t>& value,
    int64_t min,
    const char* doc) {
  on_bytes({key, doc, {.min = min}}, value);
}

} // namespace tessera::runtime
