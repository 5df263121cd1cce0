// SPDX-License-Identifier: Apache-2.0
#pragma once
// Types of scalar configuration values: how each is checked, converted and
// described in messages. For config.cpp and option_*.cpp only.

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

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"

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

inline std::string in_range(std::string_view what, const IntRange& range) {
  const bool has_min = range.min != IntRange{}.min;
  const bool has_max = range.max != IntRange{}.max;
  if (has_min && has_max) {
    return formatted("{} from {} to {}", what, range.min, range.max);
  }
  return has_min   ? formatted("{} of at least {}", what, range.min)
         : has_max ? formatted("{} of at most {}", what, range.max)
                   : std::string(what);
}

inline std::string in_range(std::string_view what, const DoubleRange& range) {
  std::string text(what);
  const bool has_min = range.min != DoubleRange{}.min;
  const bool has_max = range.max != DoubleRange{}.max;
  if (has_min && has_max && !range.open_min && !range.open_max) {
    return formatted("{} from {} to {}", what, range.min, range.max);
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

template <typename Kind>
typename Kind::Value convert(
    const nlohmann::json& value,
    const Kind& kind,
    const std::string& where) {
  TESSERA_CHECK(
      kind.accepts(value),
      "{} is {}; expected {}",
      where,
      found(value),
      kind.expected);
  return value.get<typename Kind::Value>();
}

} // namespace tessera::runtime::detail
