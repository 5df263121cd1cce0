// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_members.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <unordered_map>

namespace tessera::text::jinja {

namespace {

using Bound = std::vector<std::optional<Value>>;

/// What Python's types have, implemented here or not: they hide the keys of a
/// dict of the same name.
constexpr std::array<std::string_view, 47> kTextMethods = {
    "capitalize",   "casefold",     "center",    "count",     "encode",
    "endswith",     "expandtabs",   "find",      "format",    "format_map",
    "index",        "isalnum",      "isalpha",   "isascii",   "isdecimal",
    "isdigit",      "isidentifier", "islower",   "isnumeric", "isprintable",
    "isspace",      "istitle",      "isupper",   "join",      "ljust",
    "lower",        "lstrip",       "maketrans", "partition", "removeprefix",
    "removesuffix", "replace",      "rfind",     "rindex",    "rjust",
    "rpartition",   "rsplit",       "rstrip",    "split",     "splitlines",
    "startswith",   "strip",        "swapcase",  "title",     "translate",
    "upper",        "zfill"};
constexpr std::array<std::string_view, 6> kDictMethods =
    {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::array<std::string_view, 3> kListMethods = {
    "copy",
    "count",
    "index"};
constexpr std::array<std::string_view, 2> kTupleMethods = {"count", "index"};
constexpr std::array<std::string_view, 12> kNumberMethods = {
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "fromhex",
    "hex",
    "imag",
    "is_integer",
    "numerator",
    "real"};
/// They would change what they are called on.
constexpr std::array<std::string_view, 5> kDictChanges =
    {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array<std::string_view, 8> kListChanges =
    {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <std::size_t kCount>
bool has_name(
    const std::array<std::string_view, kCount>& names,
    std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value missing(const Value& object, std::string_view name) {
  return Value::undefined(
      object.is_none()
          ? formatted("'None' has no attribute '{}'", name)
          : formatted(
                "'{} object' has no attribute '{}'", type_name(object), name));
}

Value method_of(const Value& object, const std::string& name) {
  return std::make_shared<const Method>(
      Method{std::make_shared<const Value>(object), name});
}

std::optional<Value> loop_attribute(const Loop& loop, std::string_view name) {
  const auto index = static_cast<std::int64_t>(loop.index);
  const auto count = static_cast<std::int64_t>(loop.items.size());
  const std::array<std::pair<std::string_view, std::int64_t>, 7> numbers = {{
      {"index", index + 1},
      {"index0", index},
      {"revindex", count - index},
      {"revindex0", count - index - 1},
      {"length", count},
      {"depth", loop.depth0 + 1},
      {"depth0", loop.depth0},
  }};
  for (const auto& [known, number] : numbers) {
    if (known == name) {
      return Value(number);
    }
  }
  if (name == "first") {
    return Value(index == 0);
  }
  if (name == "last") {
    return Value(index + 1 == count);
  }
  if (name == "previtem") {
    return index > 0 ? loop.items[loop.index - 1]
                     : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? loop.items[loop.index + 1]
                             : Value::undefined("there is no next item");
  }
  return std::nullopt;
}

/// What Python's getattr() finds; nothing if it finds nothing.
std::optional<Value> python_attribute(
    const Value& object,
    const std::string& name) {
  if (const auto* space = object.get_if<std::shared_ptr<Namespace>>()) {
    const auto found = (*space)->attributes.find(name);
    return found == (*space)->attributes.end() ? std::nullopt
                                               : std::optional(found->second);
  }
  if (const auto* loop = object.get_if<std::shared_ptr<Loop>>()) {
    if (auto found = loop_attribute(**loop, name)) {
      return found;
    }
    return name == "cycle" || name == "changed"
               ? std::optional(method_of(object, name))
               : std::nullopt;
  }
  const Sequence* sequence = object.as_sequence();
  const bool is_list =
      sequence != nullptr && sequence->kind == SequenceKind::kList;
  const bool is_tuple =
      sequence != nullptr && sequence->kind == SequenceKind::kTuple;
  const bool is_dict = object.as_dict() != nullptr;
  if ((is_dict && has_name(kDictChanges, name)) ||
      (is_list && has_name(kListChanges, name))) {
    return Value::undefined(formatted(
        "the method '{}' would change a {}, which is forbidden in chat templates; set a variable or an attribute of a namespace() instead: it",
        name,
        type_name(object)));
  }
  const bool is_method =
      (object.as_text() != nullptr && has_name(kTextMethods, name)) ||
      (is_dict && has_name(kDictMethods, name)) ||
      (is_list && has_name(kListMethods, name)) ||
      (is_tuple && has_name(kTupleMethods, name)) ||
      (object.as_number() && has_name(kNumberMethods, name));
  return is_method ? std::optional(method_of(object, name)) : std::nullopt;
}

/// Nothing if the object has no such item.
std::optional<Value> python_item(
    const Value& object,
    const Value& index,
    Budget& budget) {
  if (const Dict* dict = object.as_dict()) {
    const Sequence* sequence = index.as_sequence();
    const bool may_be_key =
        index.as_text() != nullptr || index.as_number() || index.is_none() ||
        (sequence != nullptr && sequence->kind == SequenceKind::kTuple);
    const Value* found = may_be_key ? dict->find(index, budget) : nullptr;
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  auto at = index.as_integer();
  if (!at) {
    return std::nullopt;
  }
  const auto in_range = [&](std::int64_t count) {
    *at += *at < 0 ? count : 0;
    return *at >= 0 && *at < count;
  };
  if (const Text* text = object.as_text()) {
    budget.spend_steps(text->bytes.size() / 64);
    const std::vector<std::size_t> offsets = code_point_offsets(text->bytes);
    if (!in_range(static_cast<std::int64_t>(offsets.size()) - 1)) {
      return std::nullopt;
    }
    const auto i = static_cast<std::size_t>(*at);
    return Value::text(
        text->bytes.substr(offsets[i], offsets[i + 1] - offsets[i]),
        text->is_markup);
  }
  const Sequence* sequence = object.as_sequence();
  if (sequence != nullptr && sequence->kind <= SequenceKind::kTuple) {
    return in_range(static_cast<std::int64_t>(sequence->items.size()))
               ? std::optional(sequence->items[static_cast<std::size_t>(*at)])
               : std::nullopt;
  }
  if (const auto* range = object.get_if<std::shared_ptr<const Range>>()) {
    return in_range((*range)->length) ? std::optional(range_item(**range, *at))
                                      : std::nullopt;
  }
  return std::nullopt;
}

/// The indices that Python's slice(begin, end, step) takes of `count` items.
std::vector<std::size_t> slice_indices(
    const Value& begin,
    const Value& end,
    const Value& step,
    std::int64_t count) {
  for (const Value* bound : {&begin, &end, &step}) {
    TESSERA_CHECK(
        bound->is_none() || bound->as_integer(),
        "a slice has a bound of type {}; use integers",
        type_name(*bound));
  }
  const std::int64_t by = step.is_none() ? 1 : *step.as_integer();
  TESSERA_CHECK(by != 0, "the step of a slice is 0; use another one");
  const std::int64_t least = by > 0 ? 0 : -1;
  const std::int64_t most = by > 0 ? count : count - 1;
  const auto clamped = [&](const Value& value, std::int64_t standard) {
    if (value.is_none()) {
      return standard;
    }
    std::int64_t at = *value.as_integer();
    at = at < 0 ? std::max(at + count, least) : at;
    return std::min(at, most);
  };
  const std::int64_t first = clamped(begin, by > 0 ? 0 : count - 1);
  const std::int64_t last = clamped(end, by > 0 ? count : -1);
  std::vector<std::size_t> indices;
  std::int64_t at = first;
  while (by > 0 ? at < last : at > last) {
    indices.push_back(static_cast<std::size_t>(at));
    // A step that leaves the range may be too large to add.
    const std::int64_t rest = by > 0 ? last - at : at - last;
    if (by > 0 ? by >= rest : by <= -rest) {
      break;
    }
    at += by;
  }
  return indices;
}

// Methods of strings.

std::string_view plain(const Value& owner) {
  return owner.as_text()->bytes;
}

const Value& or_else(const std::optional<Value>& value, const Value& other) {
  return value ? *value : other;
}

Value texts(std::vector<std::string> parts, SequenceKind kind, Budget& budget) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) {
    budget.spend_bytes(part.size() + sizeof(Value));
    items.push_back(Value::text(std::move(part)));
  }
  return Value::sequence(kind, std::move(items));
}

Value strip_method(
    std::string_view text,
    const Arguments& arguments,
    StripSide side,
    std::string_view name) {
  const Bound bound = bound_arguments(arguments, name, {"chars"});
  const Value characters = or_else(bound[0], None());
  if (characters.is_none()) {
    return Value::text(std::string(strip(text, side)));
  }
  return Value::text(
      std::string(strip(text, side, text_argument(characters, name, "chars"))));
}

Value strip_both(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  return strip_method(text, arguments, StripSide::kBoth, "strip");
}

Value strip_left(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  return strip_method(text, arguments, StripSide::kLeft, "lstrip");
}

Value strip_right(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  return strip_method(text, arguments, StripSide::kRight, "rstrip");
}

Value split_method(
    std::string_view text,
    const Arguments& arguments,
    SplitFrom from,
    Budget& budget) {
  const Bound bound = bound_arguments(arguments, "split", {"sep", "maxsplit"});
  const Value separator = or_else(bound[0], None());
  const std::int64_t count =
      bound[1] ? integer_argument(*bound[1], "split", "maxsplit") : -1;
  if (separator.is_none()) {
    return texts(
        split(text, std::nullopt, count, from), SequenceKind::kList, budget);
  }
  const std::string& by = text_argument(separator, "split", "sep");
  TESSERA_CHECK(!by.empty(), "split: the separator is empty; give one");
  return texts(split(text, by, count, from), SequenceKind::kList, budget);
}

Value split_left(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  return split_method(text, arguments, SplitFrom::kLeft, budget);
}

Value split_right(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  return split_method(text, arguments, SplitFrom::kRight, budget);
}

Value split_lines_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  const Bound bound = bound_arguments(arguments, "splitlines", {"keepends"});
  return texts(
      split_lines(text, bound[0] && is_truthy(*bound[0])),
      SequenceKind::kList,
      budget);
}

/// startswith and endswith.
template <typename Matches>
Value affix_method(
    const Arguments& arguments,
    std::string_view name,
    const Matches& matches) {
  const Bound bound = bound_arguments(arguments, name, {"affix"}, 1);
  const Sequence* several = bound[0]->as_sequence();
  if (several != nullptr && several->kind == SequenceKind::kTuple) {
    return std::any_of(
        several->items.begin(), several->items.end(), [&](const Value& affix) {
          return matches(text_argument(affix, name, "affix"));
        });
  }
  return matches(text_argument(*bound[0], name, "affix"));
}

Value starts_with_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  return affix_method(arguments, "startswith", [&](const std::string& affix) {
    return text.starts_with(affix);
  });
}

Value ends_with_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  return affix_method(arguments, "endswith", [&](const std::string& affix) {
    return text.ends_with(affix);
  });
}

Value replace_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  const Bound bound =
      bound_arguments(arguments, "replace", {"old", "new", "count"}, 2);
  return replaced_text(
      std::string(text),
      text_argument(*bound[0], "replace", "old"),
      text_argument(*bound[1], "replace", "new"),
      bound[2] ? integer_argument(*bound[2], "replace", "count") : -1,
      budget);
}

template <std::string (*kConvert)(std::string_view)>
Value convert_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  bound_arguments(arguments, "a method without arguments", {});
  return Value::text(kConvert(text));
}

template <bool (*kAccept)(std::string_view)>
Value check_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  bound_arguments(arguments, "a method without arguments", {});
  return kAccept(text);
}

/// In code points; -1 for npos.
std::int64_t code_points_before(std::string_view text, std::size_t at) {
  return at == std::string_view::npos
             ? -1
             : static_cast<std::int64_t>(count_code_points(text.substr(0, at)));
}

Value find_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  const Bound bound = bound_arguments(arguments, "find", {"sub"}, 1);
  return code_points_before(
      text, text.find(text_argument(*bound[0], "find", "sub")));
}

Value find_last_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  const Bound bound = bound_arguments(arguments, "rfind", {"sub"}, 1);
  return code_points_before(
      text, text.rfind(text_argument(*bound[0], "rfind", "sub")));
}

Value count_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  const Bound bound = bound_arguments(arguments, "count", {"sub"}, 1);
  const std::string& part = text_argument(*bound[0], "count", "sub");
  if (part.empty()) {
    return static_cast<std::int64_t>(count_code_points(text)) + 1;
  }
  std::int64_t count = 0;
  std::size_t at = 0;
  while ((at = text.find(part, at)) != std::string_view::npos) {
    ++count;
    at += part.size();
  }
  return count;
}

Value join_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  const Bound bound = bound_arguments(arguments, "join", {"iterable"}, 1);
  std::string result;
  std::string_view separator;
  for (const Value& item : elements(*bound[0], budget)) {
    const std::string& part = text_argument(item, "join", "iterable");
    budget.spend_bytes(separator.size() + part.size());
    result += separator;
    result += part;
    separator = text;
  }
  return Value::text(std::move(result));
}

Value remove_prefix_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  const Bound bound = bound_arguments(arguments, "removeprefix", {"prefix"}, 1);
  const std::string& prefix =
      text_argument(*bound[0], "removeprefix", "prefix");
  text.remove_prefix(text.starts_with(prefix) ? prefix.size() : 0);
  return Value::text(std::string(text));
}

Value remove_suffix_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& /*budget*/) {
  const Bound bound = bound_arguments(arguments, "removesuffix", {"suffix"}, 1);
  const std::string& suffix =
      text_argument(*bound[0], "removesuffix", "suffix");
  text.remove_suffix(text.ends_with(suffix) ? suffix.size() : 0);
  return Value::text(std::string(text));
}

Value partition_method(
    std::string_view text,
    const Arguments& arguments,
    SplitFrom from,
    Budget& budget) {
  const Bound bound = bound_arguments(arguments, "partition", {"sep"}, 1);
  const std::string& by = text_argument(*bound[0], "partition", "sep");
  TESSERA_CHECK(!by.empty(), "partition: the separator is empty; give one");
  const std::size_t at =
      from == SplitFrom::kLeft ? text.find(by) : text.rfind(by);
  std::vector<std::string> parts(3);
  if (at != std::string_view::npos) {
    parts = {
        std::string(text.substr(0, at)),
        by,
        std::string(text.substr(at + by.size()))};
  } else {
    parts[from == SplitFrom::kLeft ? 0 : 2] = text;
  }
  return texts(std::move(parts), SequenceKind::kTuple, budget);
}

Value partition_left(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  return partition_method(text, arguments, SplitFrom::kLeft, budget);
}

Value partition_right(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  return partition_method(text, arguments, SplitFrom::kRight, budget);
}

const Value& format_field(
    std::string_view field,
    const Arguments& arguments,
    std::size_t& next) {
  const bool is_number =
      !field.empty() && std::all_of(field.begin(), field.end(), [](char c) {
        return c >= '0' && c <= '9';
      });
  const bool is_name = std::all_of(field.begin(), field.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
           (c >= 'A' && c <= 'Z');
  });
  TESSERA_CHECK(
      is_name && field.size() < 64,
      "format: the field {{{}}} is not implemented; use {{}}, {{0}} or {{name}}",
      field);
  if (field.empty() || is_number) {
    const std::size_t at =
        field.empty() ? next++
                      : static_cast<std::size_t>(
                            parse_integer(field.substr(0, 9)).value_or(0));
    TESSERA_CHECK(
        at < arguments.positional.size(),
        "format: the text needs more than {} arguments; give them",
        arguments.positional.size());
    return arguments.positional[at];
  }
  for (const auto& [name, value] : arguments.named) {
    if (name == field) {
      return value;
    }
  }
  TESSERA_FAIL("format: the argument '{}' is missing; give it", field);
}

Value format_method(
    std::string_view text,
    const Arguments& arguments,
    Budget& budget) {
  std::string result;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_doubled = i + 1 < text.size() && text[i + 1] == text[i];
    if ((text[i] == '{' || text[i] == '}') && is_doubled) {
      result += text[i++];
    } else if (text[i] == '{') {
      const std::size_t end = text.find('}', i);
      TESSERA_CHECK(
          end != std::string_view::npos,
          "format: a field has no end; close it with }}");
      const std::string shown = to_text(
          format_field(text.substr(i + 1, end - i - 1), arguments, next),
          budget);
      budget.spend_bytes(shown.size());
      result += shown;
      i = end;
    } else {
      TESSERA_CHECK(
          text[i] != '}', "format: '}}' closes no field; write }}}} for it");
      result += text[i];
    }
  }
  return Value::text(std::move(result));
}

using TextMethod = Value (*)(std::string_view, const Arguments&, Budget&);

const std::unordered_map<std::string_view, TextMethod>& text_methods() {
  static const std::unordered_map<std::string_view, TextMethod> kMethods = {
      {"capitalize", convert_method<capitalized>},
      {"count", count_method},
      {"endswith", ends_with_method},
      {"find", find_method},
      {"format", format_method},
      {"isalnum", check_method<is_alnum>},
      {"isalpha", check_method<is_alpha>},
      {"isdigit", check_method<is_digit>},
      {"islower", check_method<is_lower>},
      {"isspace", check_method<is_space>},
      {"isupper", check_method<is_upper>},
      {"join", join_method},
      {"lower", convert_method<lower_cased_text>},
      {"lstrip", strip_left},
      {"partition", partition_left},
      {"removeprefix", remove_prefix_method},
      {"removesuffix", remove_suffix_method},
      {"replace", replace_method},
      {"rfind", find_last_method},
      {"rpartition", partition_right},
      {"rsplit", split_right},
      {"rstrip", strip_right},
      {"split", split_left},
      {"splitlines", split_lines_method},
      {"startswith", starts_with_method},
      {"strip", strip_both},
      {"title", convert_method<title_cased>},
      {"upper", convert_method<upper_cased>},
  };
  return kMethods;
}

// Methods of others.

[[noreturn]] void fail_unknown_method(const Method& method) {
  TESSERA_FAIL(
      "the method '{}' of a value of type {} is not implemented; rewrite the template without it",
      method.name,
      type_name(*method.owner));
}

Value call_text_method(
    const Method& method,
    const Arguments& arguments,
    Budget& budget) {
  const auto found = text_methods().find(method.name);
  if (found == text_methods().end()) {
    fail_unknown_method(method);
  }
  TESSERA_CHECK(
      !method.owner->as_text()->is_markup,
      "the method '{}' of a text made by the filter safe is not implemented; remove |safe",
      method.name);
  const std::string_view text = plain(*method.owner);
  budget.spend_steps(1 + text.size() / 64);
  for (const Value& argument : arguments.positional) {
    if (const Text* part = argument.as_text()) {
      budget.spend_search(text, part->bytes);
    }
  }
  for (const auto& [name, argument] : arguments.named) {
    if (const Text* part = argument.as_text()) {
      budget.spend_search(text, part->bytes);
    }
  }
  Value result = found->second(text, arguments, budget);
  if (const Text* made = result.as_text()) {
    budget.spend_bytes(made->bytes.size());
  }
  return result;
}

Value dict_view(const Dict& dict, SequenceKind kind, Budget& budget) {
  std::vector<Value> items;
  items.reserve(dict.items().size());
  budget.spend_steps(dict.items().size());
  budget.spend_bytes(3 * sizeof(Value) * dict.items().size());
  for (const auto& [key, value] : dict.items()) {
    items.push_back(
        kind == SequenceKind::kDictKeys ? key
        : kind == SequenceKind::kDictValues
            ? value
            : Value::sequence(SequenceKind::kTuple, {key, value}));
  }
  return Value::sequence(kind, std::move(items));
}

Value call_dict_method(
    const Method& method,
    const Dict& dict,
    const Arguments& arguments,
    Budget& budget) {
  if (method.name == "get") {
    const Bound bound =
        bound_arguments(arguments, "get", {"key", "default"}, 1);
    TESSERA_CHECK(
        arguments.named.empty(),
        "get: the arguments have no names; remove '{}='",
        arguments.named.front().first);
    if (bound[0]->is_undefined()) {
      return or_else(bound[1], None());
    }
    const Value* found = dict.find(*bound[0], budget);
    return found == nullptr ? or_else(bound[1], None()) : *found;
  }
  bound_arguments(arguments, method.name, {});
  if (method.name == "items") {
    return dict_view(dict, SequenceKind::kDictItems, budget);
  }
  if (method.name == "keys") {
    return dict_view(dict, SequenceKind::kDictKeys, budget);
  }
  if (method.name == "values") {
    return dict_view(dict, SequenceKind::kDictValues, budget);
  }
  if (method.name == "copy") {
    return *method.owner;
  }
  fail_unknown_method(method);
}

Value call_sequence_method(
    const Method& method,
    const Sequence& sequence,
    const Arguments& arguments,
    Budget& budget) {
  if (method.name == "copy") {
    bound_arguments(arguments, "copy", {});
    return *method.owner;
  }
  const Bound bound = bound_arguments(arguments, method.name, {"value"}, 1);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sequence.items.size(); ++i) {
    if (equal(sequence.items[i], *bound[0], budget)) {
      if (method.name == "index") {
        return static_cast<std::int64_t>(i);
      }
      ++count;
    }
  }
  TESSERA_CHECK(
      method.name == "count",
      "index: the {} does not contain the value",
      type_name(*method.owner));
  return count;
}

Value call_loop_method(
    const Method& method,
    Loop& loop,
    const Arguments& arguments,
    Budget& budget) {
  TESSERA_CHECK(
      arguments.named.empty(),
      "loop.{}: the arguments have no names; remove '{}='",
      method.name,
      arguments.named.front().first);
  if (method.name == "cycle") {
    TESSERA_CHECK(
        !arguments.positional.empty(), "loop.cycle: no values; give some");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value before = Value::list(loop.last_changed);
  const Value now = Value::list(arguments.positional);
  const bool is_first = loop.last_changed.empty();
  const bool is_changed = is_first || !equal(before, now, budget);
  loop.last_changed = arguments.positional;
  return is_changed;
}

} // namespace

std::vector<std::optional<Value>> bound_arguments(
    const Arguments& arguments,
    std::string_view function,
    std::initializer_list<std::string_view> parameters,
    std::size_t required) {
  TESSERA_CHECK(
      arguments.positional.size() <= parameters.size(),
      "{} takes {} arguments, but is given {}; remove the others",
      function,
      parameters.size(),
      arguments.positional.size());
  Bound bound(parameters.size());
  std::copy(
      arguments.positional.begin(), arguments.positional.end(), bound.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto* const found =
        std::find(parameters.begin(), parameters.end(), name);
    TESSERA_CHECK(
        found != parameters.end(),
        "{}: the argument '{}' is not known; remove it",
        function,
        name);
    std::optional<Value>& slot =
        bound[static_cast<std::size_t>(found - parameters.begin())];
    TESSERA_CHECK(
        !slot, "{}: the argument '{}' is given twice", function, name);
    slot = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    TESSERA_CHECK(
        bound[i].has_value(),
        "{}: the argument '{}' is missing; give it",
        function,
        *(parameters.begin() + i));
  }
  return bound;
}

std::int64_t integer_argument(
    const Value& value,
    std::string_view function,
    std::string_view parameter) {
  const auto number = value.as_integer();
  TESSERA_CHECK(
      number.has_value(),
      "{}: the argument '{}' has the type {}; use an integer",
      function,
      parameter,
      type_name(value));
  return *number;
}

const std::string& text_argument(
    const Value& value,
    std::string_view function,
    std::string_view parameter) {
  if (value.is_undefined()) {
    fail_undefined(value);
  }
  TESSERA_CHECK(
      value.as_text() != nullptr,
      "{}: the argument '{}' has the type {}; use a string",
      function,
      parameter,
      type_name(value));
  return value.as_text()->bytes;
}

Value attribute_of(
    const Value& object,
    const std::string& name,
    Budget& budget) {
  if (object.is_undefined()) {
    fail_undefined(object);
  }
  if (auto found = python_attribute(object, name)) {
    return std::move(*found);
  }
  if (auto found = python_item(object, Value::text(name), budget)) {
    return std::move(*found);
  }
  return missing(object, name);
}

Value item_of(const Value& object, const Value& index, Budget& budget) {
  if (object.is_undefined()) {
    fail_undefined(object);
  }
  if (auto found = python_item(object, index, budget)) {
    return std::move(*found);
  }
  if (const Text* name = index.as_text()) {
    auto found = python_attribute(object, name->bytes);
    return found ? std::move(*found) : missing(object, name->bytes);
  }
  return Value::undefined(formatted(
      "'{} object' has no element {}",
      type_name(object),
      index.as_integer() ? std::to_string(*index.as_integer())
                         : "of type " + std::string(type_name(index))));
}

Value slice_of(
    const Value& object,
    const Value& begin,
    const Value& end,
    const Value& step,
    Budget& budget) {
  if (object.is_undefined()) {
    fail_undefined(object);
  }
  const Text* text = object.as_text();
  const Sequence* sequence = object.as_sequence();
  TESSERA_CHECK(
      !object.is<std::shared_ptr<const Range>>(),
      "slices of a range are not implemented; use `| list` before");
  TESSERA_CHECK(
      text != nullptr ||
          (sequence != nullptr && sequence->kind <= SequenceKind::kTuple),
      "a value of type {} has no slices; use a string or a list",
      type_name(object));
  const std::vector<std::size_t> offsets =
      text == nullptr ? std::vector<std::size_t>()
                      : code_point_offsets(text->bytes);
  const std::size_t count =
      text == nullptr ? sequence->items.size() : offsets.size() - 1;
  budget.spend_steps(count / 64);
  const auto indices =
      slice_indices(begin, end, step, static_cast<std::int64_t>(count));
  budget.spend_steps(indices.size() / 16);
  if (text != nullptr) {
    budget.spend_bytes(indices.size());
    std::string result;
    for (const std::size_t i : indices) {
      result.append(text->bytes, offsets[i], offsets[i + 1] - offsets[i]);
    }
    return Value::text(std::move(result), text->is_markup);
  }
  budget.spend_bytes(indices.size() * sizeof(Value));
  std::vector<Value> items;
  items.reserve(indices.size());
  for (const std::size_t i : indices) {
    items.push_back(sequence->items[i]);
  }
  return Value::sequence(sequence->kind, std::move(items));
}

Value call_method(
    const Method& method,
    const Arguments& arguments,
    Budget& budget) {
  const Value& owner = *method.owner;
  if (owner.as_text() != nullptr) {
    return call_text_method(method, arguments, budget);
  }
  if (const Dict* dict = owner.as_dict()) {
    return call_dict_method(method, *dict, arguments, budget);
  }
  if (const Sequence* sequence = owner.as_sequence()) {
    return call_sequence_method(method, *sequence, arguments, budget);
  }
  if (const auto* loop = owner.get_if<std::shared_ptr<Loop>>()) {
    return call_loop_method(method, **loop, arguments, budget);
  }
  fail_unknown_method(method);
}

Value percent_format(
    const std::string& text,
    const Value& values,
    Budget& budget) {
  const Sequence* several = values.as_sequence();
  const std::vector<Value> items =
      several != nullptr && several->kind == SequenceKind::kTuple
          ? several->items
          : std::vector<Value>{values};
  budget.spend_bytes(text.size());
  std::string result;
  std::size_t next = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : ' ';
    if (kind == '%') {
      result += '%';
      continue;
    }
    TESSERA_CHECK(
        kind == 's' || kind == 'd',
        "a text with '%{}' is not implemented; use %s, %d or ~",
        kind);
    TESSERA_CHECK(
        next < items.size(),
        "a text with % needs more than {} values; give them",
        items.size());
    const Value& item = items[next++];
    TESSERA_CHECK(
        kind == 's' || item.as_integer(),
        "%d needs an integer, but is given a value of type {}; use %s",
        type_name(item));
    const std::string shown = kind == 's' ? to_text(item, budget)
                                          : std::to_string(*item.as_integer());
    budget.spend_bytes(shown.size());
    result += shown;
  }
  TESSERA_CHECK(
      next == items.size() || values.as_dict() != nullptr,
      "a text with % takes {} values, but is given {}; remove the others",
      next,
      items.size());
  return Value::text(std::move(result));
}

void fail_undefined(const Value& value) {
  const auto& reason = value.get_if<Undefined>()->reason;
  TESSERA_FAIL(
      "{}; test it first, e.g. `is defined`",
      reason ? *reason : std::string("a value is undefined"));
}

Value replaced_text(
    const std::string& text,
    const std::string& from,
    const std::string& to,
    std::int64_t count,
    Budget& budget) {
  std::string result;
  std::size_t at = 0;
  const auto add = [&](std::string_view part) {
    budget.spend_bytes(part.size());
    result += part;
  };
  budget.spend_search(text, from);
  const auto goes_on = [&] { return count < 0 || count-- > 0; };
  if (from.empty()) {
    while (goes_on()) {
      add(to);
      if (at == text.size()) {
        return Value::text(std::move(result));
      }
      const std::size_t length = utf8_length(text, at);
      add(std::string_view(text).substr(at, length));
      at += length;
    }
  } else {
    std::size_t found = 0;
    while ((found = text.find(from, at)) != std::string::npos && goes_on()) {
      add(std::string_view(text).substr(at, found - at));
      add(to);
      at = found + from.size();
    }
  }
  add(std::string_view(text).substr(at));
  return Value::text(std::move(result));
}

} // namespace tessera::text::jinja
