// SPDX-License-Identifier: Apache-2.0
#pragma once
// `attribute_of()`, `item_of()` and `call_method()` give a template access to
// what its values contain and to the methods of strings, dicts and lists.

#include "tessera/text/chat/jinja_value.h"

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::text::jinja {

/// Of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// The arguments in the order of the parameters; nothing for those that are not
/// given.
/// @throws tessera::Error if one of the first `required` is missing, or there
///     is none of a name.
std::vector<std::optional<Value>> bound_arguments(
    const Arguments& arguments,
    std::string_view function,
    std::initializer_list<std::string_view> parameters,
    std::size_t required = 0);

/// @throws tessera::Error if the argument is not an integer.
std::int64_t integer_argument(
    const Value& value,
    std::string_view function,
    std::string_view parameter);
/// @throws tessera::Error if the argument is not a string.
const std::string& text_argument(
    const Value& value,
    std::string_view function,
    std::string_view parameter);

/// `object.name`: a method rather than an item, as in Python. Undefined if
/// there is none.
/// @throws tessera::Error if the object is undefined.
Value attribute_of(
    const Value& object,
    const std::string& name,
    Budget& budget);
/// `object[index]`: an item rather than a method.
Value item_of(const Value& object, const Value& index, Budget& budget);
/// `object[begin:end:step]`.
Value slice_of(
    const Value& object,
    const Value& begin,
    const Value& end,
    const Value& step,
    Budget& budget);

Value call_method(
    const Method& method,
    const Arguments& arguments,
    Budget& budget);

/// Python's `text % values`.
Value percent_format(
    const std::string& text,
    const Value& values,
    Budget& budget);

/// @throws tessera::Error "... is undefined", naming what is.
[[noreturn]] void fail_undefined(const Value& value);

/// text.replace(from, to, count); negative: all.
Value replaced_text(
    const std::string& text,
    const std::string& from,
    const std::string& to,
    std::int64_t count,
    Budget& budget);

} // namespace tessera::text::jinja
