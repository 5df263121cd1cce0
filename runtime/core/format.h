// SPDX-License-Identifier: Apache-2.0
#pragma once
// `formatted()` makes a string from a format string and arguments, e.g.
// formatted("{} of {} bytes", done, total).

#include <fmt/base.h>

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

namespace detail {

std::string write_format(fmt::string_view format, fmt::format_args arguments);

/// Passes numbers and strings to fmt as they are, and anything else as the text
/// that operator<< writes. (fmt::is_formattable would instantiate what
/// fmt/format.h specializes.)
template <typename T>
inline constexpr bool is_text =
    std::is_convertible_v<const T&, std::string_view>;
template <typename T>
using Printable = std::conditional_t<
    is_text<T>,
    fmt::string_view,
    std::conditional_t<std::is_arithmetic_v<T>, T, std::string>>;

template <typename T>
Printable<T> printable(const T& value) {
  if constexpr (is_text<T>) {
    const std::string_view text = value;
    return {text.data(), text.size()};
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    std::ostringstream text;
    text << value;
    return text.str();
  }
}

template <typename... Arguments>
std::string format_all(fmt::string_view format, const Arguments&... arguments) {
  return write_format(format, fmt::make_format_args(arguments...));
}

} // namespace detail

/// Formats with fmt's syntax (https://fmt.dev); `format` is checked at compile
/// time.
template <typename... Arguments>
std::string formatted(
    fmt::format_string<detail::Printable<Arguments>...> format,
    const Arguments&... arguments) {
  return detail::format_all(format, detail::printable(arguments)...);
}

} // namespace tessera
