// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values of configurations: how each is checked, converted and described in
// messages. For config.cpp, json_value.cpp and option_*.cpp only.

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/option_fields.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/core/value_range.h"

namespace tessera::runtime::detail {

// Formats a value for a message: "the string \"fast\"", "the object {...}",
// "3".
inline std::string found(const nlohmann::json& value) {
  const std::string text = show_json(value);
  if (value.is_string() || value.is_object() || value.is_array()) {
    return formatted("the {} {}", value.type_name(), text);
  }
  return text;
}

inline bool contains(const IntRange& range, int64_t value) {
  return range.min <= value && value <= range.max;
}

inline bool contains(const DoubleRange& range, double value) {
  return (range.open_min ? range.min < value : range.min <= value) &&
         (range.open_max ? value < range.max : value <= range.max);
}

inline std::string in_range(std::string_view label, const IntRange& range) {
  const bool has_min = range.min != IntRange{}.min;
  const bool has_max = range.max != IntRange{}.max;
  if (has_min && has_max) {
    return formatted("{} from {} to {}", label, range.min, range.max);
  }
  return has_min   ? formatted("{} of at least {}", label, range.min)
         : has_max ? formatted("{} of at most {}", label, range.max)
                   : std::string(label);
}

inline std::string in_range(std::string_view label, const DoubleRange& range) {
  std::string text(label);
  const bool has_min = range.min != DoubleRange{}.min;
  const bool has_max = range.max != DoubleRange{}.max;
  if (has_min && has_max && !range.open_min && !range.open_max) {
    return formatted("{} from {} to {}", label, range.min, range.max);
  }
  if (has_min) {
    text += formatted(
        "{}{}", range.open_min ? " greater than " : " of at least ", range.min);
  }
  if (has_max) {
    text += formatted(
        "{}{}{}",
        has_min ? " and" : "",
        range.open_max ? " less than " : " of at most ",
        range.max);
  }
  return text;
}

// "11GB" and "11GiB" in bytes; nothing if the text is not a size.
inline std::optional<int64_t> bytes_in(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 9> kUnits{{
      {"b", 1},
      {"kb", 1e3},
      {"mb", 1e6},
      {"gb", 1e9},
      {"tb", 1e12},
      {"kib", 0x1p10},
      {"mib", 0x1p20},
      {"gib", 0x1p30},
      {"tib", 0x1p40},
  }};
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [unit_begin, code] =
      std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(unit_begin, end);
  unit.erase(0, unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  for (const auto& [name, bytes] : kUnits) {
    const double total = number * bytes;
    if (code == std::errc() && unit == name && total >= 0 && total < 0x1p63) {
      return static_cast<int64_t>(total);
    }
  }
  return std::nullopt;
}

// Each kind of value says whether it accepts a JSON value, its C++ type, and
// its description in errors.
struct StringKind {
  using Value = std::string;
  std::string expected = "a string";
  static bool accepts(const nlohmann::json& value) {
    return value.is_string();
  }
};

struct BoolKind {
  using Value = bool;
  std::string expected = "true or false";
  static bool accepts(const nlohmann::json& value) {
    return value.is_boolean();
  }
};

struct IntKind {
  using Value = int64_t;
  IntRange range;
  std::string expected = in_range("an integer", range);
  bool accepts(const nlohmann::json& value) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() &&
         value.get<uint64_t>() > static_cast<uint64_t>(IntRange{}.max))) {
      return false;
    }
    return contains(range, value.get<int64_t>());
  }
};

struct DoubleKind {
  using Value = double;
  DoubleRange range;
  std::string expected = in_range("a number", range);
  bool accepts(const nlohmann::json& value) const {
    return value.is_number() && contains(range, value.get<double>());
  }
};

// What one value of a field may be, for messages.
inline std::string expected_one(const OptionField& field) {
  std::string text;
  switch (field.kind) {
    case OptionKind::kBool:
      return BoolKind{}.expected;
    case OptionKind::kInt:
      return IntKind{field.integers}.expected;
    case OptionKind::kBytes:
      return IntKind{field.integers}.expected +
             " (bytes), or a string such as \"11GB\" or \"11GiB\"";
    case OptionKind::kNumber:
      text = DoubleKind{field.numbers}.expected;
      return field.word == nullptr ? text
                                   : text + ", or \"" + field.word + "\"";
    case OptionKind::kString:
      return StringKind{}.expected;
    case OptionKind::kChoice:
      break;
  }
  for (const std::string& name : field.names) {
    text += (text.empty() ? "one of \"" : ", \"") + name + "\"";
  }
  return text;
}

// What a field may be, for messages.
inline std::string expected(const OptionField& field) {
  switch (field.shape) {
    case OptionShape::kArray:
      return "an array, each element " + expected_one(field);
    case OptionShape::kMap:
      return "an object, each value " + expected_one(field);
    case OptionShape::kOneOrMany:
    case OptionShape::kOneOrArray:
      return "a string, or an array of strings";
    case OptionShape::kOne:
      break;
  }
  return expected_one(field);
}

// What other programs call a choice.
inline constexpr std::pair<std::string_view, const char*> kForeignChoices[] = {
    {"bf16", "bfloat16"},
    {"fp16", "float16"},
    {"fp32", "float32"},
    {"gpu", "cuda"}, // "cpu" is spelled nearer
    {"half", "float16"}};

// The choice that an unknown name stands for, or the nearest one, or empty.
inline std::string meant_choice(
    std::string_view name,
    const std::vector<std::string>& names) {
  for (const auto& [foreign, here] : kForeignChoices) {
    if (name == foreign &&
        std::find(names.begin(), names.end(), here) != names.end()) {
      return here;
    }
  }
  return nearest_name(name, names);
}

// One value of a field as it is kept: numbers of bytes without their unit; null
// if the field does not take it.
inline nlohmann::json converted(
    const OptionField& field,
    const nlohmann::json& value) {
  bool fits = false;
  switch (field.kind) {
    case OptionKind::kBool:
      fits = BoolKind::accepts(value);
      break;
    case OptionKind::kBytes:
      if (value.is_string()) {
        const auto bytes = bytes_in(value.get<std::string>());
        return bytes && contains(field.integers, *bytes)
                   ? nlohmann::json(*bytes)
                   : nlohmann::json();
      }
      [[fallthrough]];
    case OptionKind::kInt:
      fits = IntKind{field.integers}.accepts(value);
      break;
    case OptionKind::kNumber:
      return DoubleKind{field.numbers}.accepts(value)
                 ? nlohmann::json(value.get<double>())
                 : nlohmann::json();
    case OptionKind::kString:
      fits = StringKind::accepts(value);
      break;
    case OptionKind::kChoice:
      fits = std::find(field.names.begin(), field.names.end(), value) !=
             field.names.end();
      break;
  }
  return fits ? value : nlohmann::json();
}

// A value as the field keeps it.
// @throws Error naming the place, the value and what was expected.
inline nlohmann::json convert(
    const OptionField& field,
    const nlohmann::json& value,
    const std::string& where) {
  const auto refuse = [](const std::string& place,
                         const nlohmann::json& wrong,
                         const std::string& expected) {
    TESSERA_FAIL("{} is {}; expected {}", place, found(wrong), expected);
  };
  const bool is_many = field.shape == OptionShape::kMap   ? value.is_object()
                       : field.shape == OptionShape::kOne ? false
                                                          : value.is_array();
  if (is_many) {
    nlohmann::json all = value;
    for (auto& [key, one] : all.items()) {
      const nlohmann::json given = one;
      one = converted(field, given);
      if (one.is_null()) {
        refuse(where + "." + key, given, expected_one(field));
      }
    }
    if (field.count > 0 && all.size() != static_cast<size_t>(field.count)) {
      refuse(where, value, numbers_text(field.count));
    }
    return all;
  }
  const bool takes_one =
      field.shape != OptionShape::kMap && field.shape != OptionShape::kArray;
  nlohmann::json one = takes_one ? converted(field, value) : nlohmann::json();
  if (one.is_null()) {
    const std::string meant =
        field.kind == OptionKind::kChoice && value.is_string()
            ? meant_choice(value.get<std::string>(), field.names)
            : "";
    refuse(
        where,
        value,
        expected(field) +
            (meant.empty() ? "" : "; did you mean \"" + meant + "\"?"));
  }
  return one;
}

} // namespace tessera::runtime::detail
