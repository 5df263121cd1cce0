// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_filters.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_operators.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

namespace tessera::text::jinja {

namespace {

using Options = std::vector<std::optional<Value>>;

bool option_flag(const std::optional<Value>& value) {
  return value && is_truthy(*value);
}

Value option_or_none(const std::optional<Value>& value) {
  return value.value_or(None());
}

/// The text of a value that the filter does not leave as it is.
std::string plain_text(
    const Value& value,
    std::string_view filter,
    Budget& budget) {
  const Text* text = value.as_text();
  TESSERA_CHECK(
      text == nullptr || !text->is_markup,
      "{}: a text made by the filter safe is not implemented; remove |safe",
      filter);
  return to_text(value, budget);
}

/// The text changed by `convert`; one that is markup stays so.
template <typename Convert>
Value converted_text(
    const Value& subject,
    Budget& budget,
    const Convert& convert) {
  const Text* text = subject.as_text();
  const std::string plain = to_text(subject, budget);
  budget.spend_steps(plain.size() / 64);
  return Value::text(
      std::string(convert(std::string_view(plain))),
      text != nullptr && text->is_markup);
}

/// Python's value.lower(), unless the order distinguishes upper and lower case.
Value sort_key(const Value& value, bool is_case_sensitive) {
  const Text* text = value.as_text();
  return text == nullptr || is_case_sensitive
             ? value
             : Value::text(lower_cased_text(text->bytes));
}

/// The attribute `path` of an item: "a.b.0", or an index.
Value attribute_at(const Value& item, const Value& path, Budget& budget) {
  if (path.is_none()) {
    return item;
  }
  if (path.as_text() == nullptr) {
    return item_of(item, path, budget);
  }
  Value value = item;
  for (const std::string& part :
       split(path.as_text()->bytes, ".", -1, SplitFrom::kLeft)) {
    value = is_digit(part)
                ? item_of(value, parse_integer(part).value_or(0), budget)
                : item_of(value, Value::text(part), budget);
  }
  return value;
}

/// By one attribute, or by several with commas between them.
Value sort_key_at(
    const Value& item,
    const Value& path,
    bool is_case_sensitive,
    Budget& budget) {
  const Text* text = path.as_text();
  if (text == nullptr || text->bytes.find(',') == std::string::npos) {
    return sort_key(attribute_at(item, path, budget), is_case_sensitive);
  }
  std::vector<Value> keys;
  for (const std::string& part :
       split(text->bytes, ",", -1, SplitFrom::kLeft)) {
    keys.push_back(sort_key(
        attribute_at(item, Value::text(part), budget), is_case_sensitive));
  }
  return Value::list(std::move(keys));
}

std::vector<Value> sorted(
    const std::vector<Value>& items,
    const std::vector<Value>& keys,
    bool is_reversed,
    Budget& budget) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return is_reversed ? less(keys[b], keys[a], budget)
                       : less(keys[a], keys[b], budget);
  });
  std::vector<Value> result;
  result.reserve(items.size());
  for (const std::size_t i : order) {
    result.push_back(items[i]);
  }
  return result;
}

// Filters of texts.

Value filter_trim(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options = bound_arguments(given, "trim", {"chars"});
  const Value characters = option_or_none(options[0]);
  return converted_text(subject, budget, [&](std::string_view text) {
    if (const Text* part = characters.as_text()) {
      budget.spend_search(text, part->bytes);
    }
    return characters.is_none()
               ? strip(text)
               : strip(
                     text,
                     StripSide::kBoth,
                     text_argument(characters, "trim", "chars"));
  });
}

Value filter_upper(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "upper", {});
  return converted_text(subject, budget, upper_cased);
}

Value filter_lower(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "lower", {});
  return converted_text(subject, budget, lower_cased_text);
}

Value filter_capitalize(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "capitalize", {});
  return converted_text(subject, budget, capitalized);
}

/// Jinja's words, which begin after other characters than those of
/// str.title().
Value filter_title(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "title", {});
  const std::string text = to_text(subject, budget);
  budget.spend_steps(text.size() / 64);
  std::string result;
  std::size_t word = 0;
  const auto add_word = [&](std::size_t end) {
    if (word < end) {
      const std::size_t first = utf8_length(text, word);
      result += upper_cased(std::string_view(text).substr(word, first));
      result += lower_cased_text(
          std::string_view(text).substr(word + first, end - word - first));
    }
  };
  for_each_code_point(text, [&](char32_t c, std::size_t at) {
    if (is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' ||
        c == '<') {
      add_word(at);
      const std::size_t length = utf8_length(text, at);
      result.append(text, at, length);
      word = at + length;
    }
  });
  add_word(text.size());
  return Value::text(std::move(result));
}

Value filter_replace(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options =
      bound_arguments(given, "replace", {"old", "new", "count"}, 2);
  const Value count = option_or_none(options[2]);
  return replaced_text(
      to_text(subject, budget),
      to_text(*options[0], budget),
      to_text(*options[1], budget),
      count.is_none() ? -1 : integer_argument(count, "replace", "count"),
      budget);
}

std::string indentation(const Value& width) {
  if (const Text* text = width.as_text()) {
    return text->bytes;
  }
  const std::int64_t count = integer_argument(width, "indent", "width");
  TESSERA_CHECK(
      count <= 1000, "indent: the width {} is above 1000; reduce it", count);
  std::string spaces;
  spaces.resize(
      static_cast<std::size_t>(std::max<std::int64_t>(count, 0)), ' ');
  return spaces;
}

Value filter_indent(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options =
      bound_arguments(given, "indent", {"width", "first", "blank"});
  const std::string indent =
      indentation(options[0].value_or(Value(std::int64_t{4})));
  TESSERA_CHECK(
      subject.as_text() != nullptr,
      "indent: the value has the type {}; use `| string` before",
      type_name(subject));
  const std::string text = plain_text(subject, "indent", budget);
  const bool indents_blank = option_flag(options[2]);
  std::string result = option_flag(options[1]) ? indent : "";
  bool is_first = true;
  for (const std::string& line : split_lines(text + "\n", false)) {
    const bool is_indented = !is_first && (indents_blank || !line.empty());
    budget.spend_bytes(line.size() + indent.size() + 1);
    result += is_first ? "" : "\n";
    result += is_indented ? indent : "";
    result += line;
    is_first = false;
  }
  return Value::text(std::move(result));
}

Value filter_string(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "string", {});
  return subject.as_text() != nullptr ? subject
                                      : Value::text(to_text(subject, budget));
}

Value filter_safe(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "safe", {});
  return Value::text(to_text(subject, budget), true);
}

Value filter_escape(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "escape", {});
  const Text* text = subject.as_text();
  return text != nullptr && text->is_markup
             ? subject
             : Value::text(escaped_html(to_text(subject, budget)), true);
}

Value filter_format(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  TESSERA_CHECK(
      given.named.empty(), "format: arguments with names are not implemented");
  return percent_format(
      plain_text(subject, "format", budget),
      Value::sequence(SequenceKind::kTuple, given.positional),
      budget);
}

JsonFormat json_format(const Options& options) {
  JsonFormat format;
  format.ensure_ascii = option_flag(options[0]);
  format.sort_keys = option_flag(options[3]);
  const Value indent = option_or_none(options[1]);
  if (const Text* text = indent.as_text()) {
    format.indent = text->bytes;
  } else if (!indent.is_none()) {
    const std::int64_t width = integer_argument(indent, "tojson", "indent");
    TESSERA_CHECK(
        width <= 100, "tojson: the indent {} is above 100; reduce it", width);
    format.indent.emplace(
        static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  if (format.indent) {
    format.item_separator = ",";
  }
  const Value separators = option_or_none(options[2]);
  if (!separators.is_none()) {
    const Sequence* pair = separators.as_sequence();
    TESSERA_CHECK(
        pair != nullptr && pair->items.size() == 2,
        "tojson: separators are not a pair; use e.g. (',', ':')");
    format.item_separator =
        text_argument(pair->items[0], "tojson", "separators");
    format.key_separator =
        text_argument(pair->items[1], "tojson", "separators");
  }
  return format;
}

Value filter_tojson(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options = bound_arguments(
      given, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  return Value::text(to_json(subject, json_format(options), budget));
}

// Filters of numbers.

Value filter_int(const Value& subject, const Arguments& given, Budget& /*b*/) {
  const Options options = bound_arguments(given, "int", {"default", "base"});
  TESSERA_CHECK(
      !options[1] || options[1]->as_integer() == 10,
      "int: bases other than 10 are not implemented");
  if (subject.is_undefined()) {
    fail_undefined(subject);
  }
  std::optional<double> number;
  if (const auto integer = subject.as_integer()) {
    return *integer;
  }
  if (const Text* text = subject.as_text()) {
    if (const auto integer = parse_integer(text->bytes)) {
      return *integer;
    }
    number = parse_float(text->bytes);
  } else {
    number = subject.as_number();
  }
  if (!number || !std::isfinite(*number)) {
    return options[0].value_or(Value(std::int64_t{0}));
  }
  TESSERA_CHECK(
      std::fabs(*number) < 9223372036854775808.0,
      "int: {} needs more than 64 bits",
      *number);
  return static_cast<std::int64_t>(*number);
}

Value filter_float(
    const Value& subject,
    const Arguments& given,
    Budget& /*budget*/) {
  const Options options = bound_arguments(given, "float", {"default"});
  if (subject.is_undefined()) {
    fail_undefined(subject);
  }
  const auto number = subject.as_text() != nullptr
                          ? parse_float(subject.as_text()->bytes)
                          : subject.as_number();
  return number ? Value(*number) : options[0].value_or(Value(0.0));
}

Value filter_abs(const Value& subject, const Arguments& given, Budget& budget) {
  bound_arguments(given, "abs", {});
  const auto number = subject.as_number();
  TESSERA_CHECK(
      number.has_value(),
      "abs: the value has the type {}; use a number",
      type_name(subject));
  if (subject.is<double>()) {
    return std::fabs(*number);
  }
  return *number < 0 ? unary_operation(UnaryOperator::kNegate, subject, budget)
                     : unary_operation(UnaryOperator::kPlus, subject, budget);
}

Value filter_round(
    const Value& subject,
    const Arguments& given,
    Budget& /*budget*/) {
  const Options options =
      bound_arguments(given, "round", {"precision", "method"});
  const std::int64_t precision =
      options[0] ? integer_argument(*options[0], "round", "precision") : 0;
  TESSERA_CHECK(
      precision >= 0 && precision <= 15,
      "round: the precision {} is not implemented; use 0 to 15",
      precision);
  const auto number = subject.as_number();
  TESSERA_CHECK(
      number.has_value(),
      "round: the value has the type {}; use a number",
      type_name(subject));
  const std::string method =
      options[1] ? text_argument(*options[1], "round", "method") : "common";
  if (method == "common") {
    if (const auto integer = subject.as_integer()) {
      return *integer;
    }
    if (!std::isfinite(*number)) {
      return *number;
    }
    // printf() rounds the exact value, as Python does.
    std::array<char, 400> buffer{};
    std::snprintf(
        buffer.data(),
        buffer.size(),
        "%.*f",
        static_cast<int>(precision),
        *number);
    return std::strtod(buffer.data(), nullptr);
  }
  TESSERA_CHECK(
      method == "ceil" || method == "floor",
      "round: the method '{}' is not known; use common, ceil or floor",
      method);
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *number * scale;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
}

// Filters of lists and dicts.

Value filter_length(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "length", {});
  const auto count = length(subject);
  TESSERA_CHECK(
      count.has_value(),
      "length: a value of type {} has none; use a string, list or dict (of a generator: `| list`)",
      type_name(subject));
  budget.spend_steps(static_cast<std::size_t>(*count) / 64);
  return *count;
}

Value filter_default(
    const Value& subject,
    const Arguments& given,
    Budget& /*budget*/) {
  const Options options =
      bound_arguments(given, "default", {"default_value", "boolean"});
  const bool is_missing = subject.is_undefined() ||
                          (option_flag(options[1]) && !is_truthy(subject));
  return is_missing ? options[0].value_or(Value::text("")) : subject;
}

Value filter_join(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options = bound_arguments(given, "join", {"d", "attribute"});
  const std::string separator =
      options[0] ? to_text(*options[0], budget) : std::string();
  const Value path = option_or_none(options[1]);
  std::string result;
  bool is_first = true;
  for (const Value& item : elements(subject, budget)) {
    const std::string text = to_text(attribute_at(item, path, budget), budget);
    budget.spend_bytes(text.size() + separator.size());
    result += is_first ? "" : separator;
    result += text;
    is_first = false;
  }
  return Value::text(std::move(result));
}

Value filter_first(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "first", {});
  const auto none = [] {
    return Value::undefined("No first item, sequence was empty");
  };
  if (const auto* generator = subject.get_if<std::shared_ptr<Generator>>()) {
    Generator& rest = **generator;
    return rest.next < rest.items.size() ? rest.items[rest.next++] : none();
  }
  const std::vector<Value> items = elements(subject, budget);
  return items.empty() ? none() : items.front();
}

Value filter_last(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "last", {});
  TESSERA_CHECK(
      !subject.is<std::shared_ptr<Generator>>(),
      "last: a generator has no end; use `| list` before");
  if (subject.is_undefined()) {
    fail_undefined(subject);
  }
  const std::vector<Value> items = elements(subject, budget);
  return items.empty() ? Value::undefined("No last item, sequence was empty")
                       : items.back();
}

Value filter_list(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "list", {});
  return Value::list(elements(subject, budget));
}

Value filter_reverse(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "reverse", {});
  if (subject.is_undefined()) {
    fail_undefined(subject);
  }
  std::vector<Value> items = elements(subject, budget);
  std::reverse(items.begin(), items.end());
  if (subject.as_text() != nullptr) {
    std::string text;
    for (const Value& item : items) {
      text += item.as_text()->bytes;
    }
    return Value::text(std::move(text), subject.as_text()->is_markup);
  }
  return subject.is<std::shared_ptr<Generator>>()
             ? Value::list(std::move(items))
             : Value::generator(std::move(items));
}

Value filter_items(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  bound_arguments(given, "items", {});
  if (subject.is_undefined()) {
    return Value::generator({});
  }
  const Dict* dict = subject.as_dict();
  TESSERA_CHECK(
      dict != nullptr,
      "items: the value has the type {}; use a dict",
      type_name(subject));
  std::vector<Value> items;
  budget.spend_steps(dict->items().size());
  budget.spend_bytes(3 * sizeof(Value) * dict->items().size());
  for (const auto& [key, value] : dict->items()) {
    items.push_back(Value::sequence(SequenceKind::kTuple, {key, value}));
  }
  return Value::generator(std::move(items));
}

Value filter_dictsort(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options =
      bound_arguments(given, "dictsort", {"case_sensitive", "by", "reverse"});
  const Dict* dict = subject.as_dict();
  TESSERA_CHECK(
      dict != nullptr,
      "dictsort: the value has the type {}; use a dict",
      type_name(subject));
  const std::string by =
      options[1] ? text_argument(*options[1], "dictsort", "by") : "key";
  TESSERA_CHECK(
      by == "key" || by == "value",
      "dictsort: by is '{}', but must be 'key' or 'value'",
      by);
  std::vector<Value> items;
  std::vector<Value> keys;
  budget.spend_bytes(3 * sizeof(Value) * dict->items().size());
  for (const auto& [key, value] : dict->items()) {
    items.push_back(Value::sequence(SequenceKind::kTuple, {key, value}));
    keys.push_back(
        sort_key(by == "key" ? key : value, option_flag(options[0])));
  }
  return Value::list(sorted(items, keys, option_flag(options[2]), budget));
}

Value filter_sort(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options = bound_arguments(
      given, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = elements(subject, budget);
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    keys.push_back(sort_key_at(
        item, option_or_none(options[2]), option_flag(options[1]), budget));
  }
  return Value::list(sorted(items, keys, option_flag(options[0]), budget));
}

Value filter_unique(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options =
      bound_arguments(given, "unique", {"case_sensitive", "attribute"});
  Dict seen;
  std::vector<Value> result;
  for (const Value& item : elements(subject, budget)) {
    const Value key = sort_key(
        attribute_at(item, option_or_none(options[1]), budget),
        option_flag(options[0]));
    if (seen.find(key, budget) == nullptr) {
      seen.set(key, None(), budget);
      result.push_back(item);
    }
  }
  return Value::generator(std::move(result));
}

Value extreme(
    const Value& subject,
    const Arguments& given,
    std::string_view name,
    Budget& budget) {
  const Options options =
      bound_arguments(given, name, {"case_sensitive", "attribute"});
  const auto key = [&](const Value& item) {
    return sort_key(
        attribute_at(item, option_or_none(options[1]), budget),
        option_flag(options[0]));
  };
  const std::vector<Value> items = elements(subject, budget);
  if (items.empty()) {
    return Value::undefined("No aggregated item, sequence was empty");
  }
  const Value* best = &items.front();
  for (const Value& item : items) {
    const bool is_better = name == "min" ? less(key(item), key(*best), budget)
                                         : less(key(*best), key(item), budget);
    best = is_better ? &item : best;
  }
  return *best;
}

Value filter_min(const Value& subject, const Arguments& given, Budget& budget) {
  return extreme(subject, given, "min", budget);
}

Value filter_max(const Value& subject, const Arguments& given, Budget& budget) {
  return extreme(subject, given, "max", budget);
}

Value filter_sum(const Value& subject, const Arguments& given, Budget& budget) {
  const Options options = bound_arguments(given, "sum", {"attribute", "start"});
  Value total = options[1].value_or(Value(std::int64_t{0}));
  TESSERA_CHECK(
      total.as_text() == nullptr, "sum: strings cannot be added; use `| join`");
  for (const Value& item : elements(subject, budget)) {
    total = binary_operation(
        BinaryOperator::kAdd,
        total,
        attribute_at(item, option_or_none(options[0]), budget),
        budget);
  }
  return total;
}

Value filter_batch(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  const Options options =
      bound_arguments(given, "batch", {"linecount", "fill_with"}, 1);
  const std::int64_t size = integer_argument(*options[0], "batch", "linecount");
  TESSERA_CHECK(
      size > 0 && size <= 100'000,
      "batch: linecount is {}, but must be 1 to 100000",
      size);
  const Value fill = option_or_none(options[1]);
  std::vector<Value> batches;
  std::vector<Value> batch;
  for (const Value& item : elements(subject, budget)) {
    if (batch.size() == static_cast<std::size_t>(size)) {
      batches.push_back(Value::list(std::move(batch)));
      batch.clear();
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (!fill.is_none()) {
      budget.spend_bytes(static_cast<std::size_t>(size) * sizeof(Value));
      batch.resize(static_cast<std::size_t>(size), fill);
    }
    batches.push_back(Value::list(std::move(batch)));
  }
  return Value::generator(std::move(batches));
}

Arguments without_first(const Arguments& given, std::size_t count) {
  Arguments result = given;
  result.positional.erase(
      result.positional.begin(),
      result.positional.begin() + static_cast<std::ptrdiff_t>(std::min(
                                      count, result.positional.size())));
  return result;
}

Value filter_map(const Value& subject, const Arguments& given, Budget& budget) {
  std::vector<Value> result;
  if (!is_truthy(subject)) {
    return Value::generator({}); // of none, too
  }
  if (given.positional.empty()) {
    const Options options =
        bound_arguments(given, "map", {"attribute", "default"}, 1);
    for (const Value& item : elements(subject, budget)) {
      const Value found = attribute_at(item, *options[0], budget);
      const bool takes_default =
          found.is_undefined() && options[1] && !options[1]->is_none();
      result.push_back(takes_default ? *options[1] : found);
    }
  } else {
    const std::string& name =
        text_argument(given.positional.front(), "map", "filter");
    const Arguments rest = without_first(given, 1);
    for (const Value& item : elements(subject, budget)) {
      result.push_back(apply_filter(name, item, rest, budget));
    }
  }
  return Value::generator(std::move(result));
}

enum class Selection { kSelect, kReject };

/// select, reject, selectattr and rejectattr.
Value selected(
    const Value& subject,
    const Arguments& given,
    Selection selection,
    bool by_attribute,
    Budget& budget) {
  const std::size_t first = by_attribute ? 1 : 0;
  if (!is_truthy(subject)) {
    return Value::generator({}); // of none, too
  }
  TESSERA_CHECK(
      given.positional.size() >= first,
      "selectattr: the name of the attribute is missing; give it");
  const Value path = by_attribute ? given.positional.front() : Value(None());
  const bool has_test = given.positional.size() > first;
  const std::string test =
      has_test ? text_argument(given.positional[first], "select", "test") : "";
  const Arguments rest = without_first(given, first + 1);
  std::vector<Value> result;
  for (const Value& item : elements(subject, budget)) {
    const Value value = attribute_at(item, path, budget);
    const bool accepts =
        has_test ? apply_test(test, value, rest, budget) : is_truthy(value);
    if (accepts == (selection == Selection::kSelect)) {
      result.push_back(item);
    }
  }
  return Value::generator(std::move(result));
}

Value filter_select(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  return selected(subject, given, Selection::kSelect, false, budget);
}

Value filter_reject(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  return selected(subject, given, Selection::kReject, false, budget);
}

Value filter_selectattr(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  return selected(subject, given, Selection::kSelect, true, budget);
}

Value filter_rejectattr(
    const Value& subject,
    const Arguments& given,
    Budget& budget) {
  return selected(subject, given, Selection::kReject, true, budget);
}

using Filter = Value (*)(const Value&, const Arguments&, Budget&);

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"abs", filter_abs},
      {"batch", filter_batch},
      {"capitalize", filter_capitalize},
      {"count", filter_length},
      {"d", filter_default},
      {"default", filter_default},
      {"dictsort", filter_dictsort},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"first", filter_first},
      {"float", filter_float},
      {"format", filter_format},
      {"indent", filter_indent},
      {"int", filter_int},
      {"items", filter_items},
      {"join", filter_join},
      {"last", filter_last},
      {"length", filter_length},
      {"list", filter_list},
      {"lower", filter_lower},
      {"map", filter_map},
      {"max", filter_max},
      {"min", filter_min},
      {"reject", filter_reject},
      {"rejectattr", filter_rejectattr},
      {"replace", filter_replace},
      {"reverse", filter_reverse},
      {"round", filter_round},
      {"safe", filter_safe},
      {"select", filter_select},
      {"selectattr", filter_selectattr},
      {"sort", filter_sort},
      {"string", filter_string},
      {"sum", filter_sum},
      {"title", filter_title},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"unique", filter_unique},
      {"upper", filter_upper},
  };
  return kFilters;
}

// Tests.

bool is_sequence(const Value& value) {
  const Sequence* sequence = value.as_sequence();
  return value.is_undefined() || value.as_text() != nullptr ||
         value.as_dict() != nullptr ||
         value.is<std::shared_ptr<const Range>>() ||
         (sequence != nullptr && sequence->kind <= SequenceKind::kTuple);
}

bool is_callable(const Value& value) {
  return value.is_undefined() || value.is<std::shared_ptr<const Method>>() ||
         value.is<std::shared_ptr<const Macro>>() || value.is<Builtin>();
}

using SimpleTest = bool (*)(const Value&);

const std::unordered_map<std::string_view, SimpleTest>& simple_tests() {
  static const std::unordered_map<std::string_view, SimpleTest> kTests = {
      {"boolean", [](const Value& v) { return v.is<bool>(); }},
      {"callable", is_callable},
      {"defined", [](const Value& v) { return !v.is_undefined(); }},
      {"escaped",
       [](const Value& v) {
         return v.as_text() != nullptr && v.as_text()->is_markup;
       }},
      {"false", [](const Value& v) { return v.is<bool>() && !is_truthy(v); }},
      {"float", [](const Value& v) { return v.is<double>(); }},
      {"integer", [](const Value& v) { return v.is<std::int64_t>(); }},
      {"iterable", is_iterable},
      {"mapping", [](const Value& v) { return v.as_dict() != nullptr; }},
      {"none", [](const Value& v) { return v.is_none(); }},
      {"number", [](const Value& v) { return v.as_number().has_value(); }},
      {"sequence", is_sequence},
      {"string", [](const Value& v) { return v.as_text() != nullptr; }},
      {"true", [](const Value& v) { return v.is<bool>() && is_truthy(v); }},
      {"undefined", [](const Value& v) { return v.is_undefined(); }},
  };
  return kTests;
}

using TestOfTwo = bool (*)(const Value&, const Value&, Budget&);

bool is_divisible(const Value& value, const Value& by, Budget& budget) {
  return equal(
      binary_operation(BinaryOperator::kModulo, value, by, budget),
      std::int64_t{0},
      budget);
}

bool is_same(const Value& a, const Value& b, Budget& budget) {
  const bool is_single = a.is_none() || a.is<bool>() || a.is_undefined();
  TESSERA_CHECK(
      is_single || b.is_none() || b.is<bool>() || b.is_undefined(),
      "the test sameas is only implemented for none, true and false; use ==");
  return a.form().index() == b.form().index() && equal(a, b, budget);
}

template <Comparison kComparison>
bool test_comparison(const Value& a, const Value& b, Budget& budget) {
  return compare(kComparison, a, b, budget);
}

const std::unordered_map<std::string_view, TestOfTwo>& tests_of_two() {
  static const std::unordered_map<std::string_view, TestOfTwo> kTests = {
      {"!=", test_comparison<Comparison::kNotEqual>},
      {"<", test_comparison<Comparison::kLess>},
      {"<=", test_comparison<Comparison::kLessEqual>},
      {"==", test_comparison<Comparison::kEqual>},
      {">", test_comparison<Comparison::kGreater>},
      {">=", test_comparison<Comparison::kGreaterEqual>},
      {"divisibleby", is_divisible},
      {"eq", test_comparison<Comparison::kEqual>},
      {"equalto", test_comparison<Comparison::kEqual>},
      {"ge", test_comparison<Comparison::kGreaterEqual>},
      {"greaterthan", test_comparison<Comparison::kGreater>},
      {"gt", test_comparison<Comparison::kGreater>},
      {"in", test_comparison<Comparison::kIn>},
      {"le", test_comparison<Comparison::kLessEqual>},
      {"lessthan", test_comparison<Comparison::kLess>},
      {"lt", test_comparison<Comparison::kLess>},
      {"ne", test_comparison<Comparison::kNotEqual>},
      {"sameas", is_same},
  };
  return kTests;
}

/// Tests that compute, or look at a text.
bool is_other_test(const std::string& name) {
  static constexpr std::array<std::string_view, 6> kNames = {
      "odd", "even", "lower", "upper", "filter", "test"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool apply_other_test(
    const std::string& name,
    const Value& subject,
    Budget& budget) {
  if (name == "odd" || name == "even") {
    const Value rest = binary_operation(
        BinaryOperator::kModulo, subject, std::int64_t{2}, budget);
    return equal(rest, std::int64_t{name == "odd" ? 1 : 0}, budget);
  }
  if (name == "filter") {
    return is_filter(text_argument(subject, "filter", "name"));
  }
  if (name == "test") {
    return is_test(text_argument(subject, "test", "name"));
  }
  const std::string text = to_text(subject, budget);
  return name == "lower" ? is_lower(text) : is_upper(text);
}

} // namespace

Value apply_filter(
    const std::string& name,
    const Value& subject,
    const Arguments& arguments,
    Budget& budget) {
  const auto found = filters().find(name);
  TESSERA_CHECK(
      found != filters().end(),
      "the filter '{}' is not implemented; rewrite the template without it",
      name);
  budget.spend_steps();
  Value result = found->second(subject, arguments, budget);
  const Text* made = result.as_text();
  if (made != nullptr && made != subject.as_text()) {
    budget.spend_bytes(made->bytes.size());
  }
  return result;
}

bool apply_test(
    const std::string& name,
    const Value& subject,
    const Arguments& arguments,
    Budget& budget) {
  budget.spend_steps();
  const auto simple = simple_tests().find(name);
  if (simple != simple_tests().end()) {
    bound_arguments(arguments, name, {});
    return simple->second(subject);
  }
  const auto of_two = tests_of_two().find(name);
  if (of_two != tests_of_two().end()) {
    const Options options = bound_arguments(arguments, name, {"other"}, 1);
    return of_two->second(subject, *options[0], budget);
  }
  TESSERA_CHECK(
      is_other_test(name),
      "the test '{}' is not implemented; rewrite the template without it",
      name);
  bound_arguments(arguments, name, {});
  return apply_other_test(name, subject, budget);
}

bool is_filter(const std::string& name) {
  return filters().count(name) > 0;
}

bool is_test(const std::string& name) {
  return simple_tests().count(name) > 0 || tests_of_two().count(name) > 0 ||
         is_other_test(name);
}

} // namespace tessera::text::jinja
