// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/chat/jinja_value.h"

#include "tessera/runtime/core/error.h"
#include "tessera/text/chat/jinja_text.h"
#include "tessera/text/tokenizer/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <type_traits>

namespace tessera::text::jinja {

namespace {

/// Enough for every JSON document that the rest of the library reads, and low
/// enough for recursion.
constexpr int kMaxValueDepth = 100;

/// About what an element of a list needs.
constexpr std::size_t kBytesPerItem = sizeof(Value);

template <typename T>
constexpr bool kIsPointer = false;
template <typename T>
constexpr bool kIsPointer<std::shared_ptr<T>> = true;

int checked_depth(int depth) {
  TESSERA_CHECK(
      depth <= kMaxValueDepth,
      "values are nested more than {} levels deep; flatten them",
      kMaxValueDepth);
  return depth;
}

int depth_over(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
  }
  return checked_depth(depth + 1);
}

/// Writes a text whose length is limited by the budget.
class LimitedText {
 public:
  explicit LimitedText(Budget& budget) : budget_(budget) {}

  void add(std::string_view text) {
    budget_.spend_bytes(text.size());
    text_ += text;
  }
  std::string take() {
    return std::move(text_);
  }

 private:
  Budget& budget_;
  std::string text_;
};

std::string_view label_of(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::kList:
      return "list";
    case SequenceKind::kTuple:
      return "tuple";
    case SequenceKind::kDictKeys:
      return "dict_keys";
    case SequenceKind::kDictValues:
      return "dict_values";
    case SequenceKind::kDictItems:
      return "dict_items";
  }
  return "";
}

std::string range_text(const Range& range) {
  const std::int64_t stop = range.start + range.step * range.length;
  return range.step == 1
             ? formatted("range({}, {})", range.start, stop)
             : formatted("range({}, {}, {})", range.start, stop, range.step);
}

/// Python's repr().
void write_repr(const Value& value, LimitedText& out, Budget& budget) {
  budget.spend_steps();
  if (const Text* text = value.as_text()) {
    TESSERA_CHECK(
        !text->is_markup,
        "a text made by the filter safe is shown within a container; remove |safe");
    out.add(quoted_text(text->bytes));
    return;
  }
  if (const Dict* dict = value.as_dict()) {
    out.add("{");
    const char* separator = "";
    for (const auto& [key, item] : dict->items()) {
      out.add(separator);
      write_repr(key, out, budget);
      out.add(": ");
      write_repr(item, out, budget);
      separator = ", ";
    }
    out.add("}");
    return;
  }
  if (const Sequence* sequence = value.as_sequence()) {
    const bool is_tuple = sequence->kind == SequenceKind::kTuple;
    const bool is_view = !is_tuple && sequence->kind != SequenceKind::kList;
    if (is_view) {
      out.add(label_of(sequence->kind));
      out.add("(");
    }
    out.add(is_tuple ? "(" : "[");
    const char* separator = "";
    for (const Value& item : sequence->items) {
      out.add(separator);
      write_repr(item, out, budget);
      separator = ", ";
    }
    out.add(is_tuple && sequence->items.size() == 1 ? "," : "");
    out.add(is_tuple ? ")" : "]");
    out.add(is_view ? ")" : "");
    return;
  }
  if (value.is_undefined()) {
    out.add("Undefined");
    return;
  }
  out.add(to_text(value, budget));
}

void write_json(
    const Value& value,
    const JsonFormat& format,
    const std::string& line_start,
    LimitedText& out,
    Budget& budget);

std::string json_key(const Value& key, const JsonFormat& format) {
  if (const Text* text = key.as_text()) {
    return json_text(text->bytes, format.ensure_ascii);
  }
  if (const auto* flag = key.get_if<bool>()) {
    return *flag ? "\"true\"" : "\"false\"";
  }
  if (const auto* number = key.get_if<std::int64_t>()) {
    return formatted("\"{}\"", *number);
  }
  if (const auto* number = key.get_if<double>()) {
    return "\"" + float_text(*number) + "\"";
  }
  TESSERA_CHECK(
      key.is_none(),
      "tojson: a key of type {} has no form in JSON; use strings",
      type_name(key));
  return "\"null\"";
}

/// The items of an array or object: `write_item(i)` writes one.
template <typename WriteItem>
void write_json_items(
    std::size_t count,
    const char* brackets,
    const JsonFormat& format,
    const std::string& line_start,
    LimitedText& out,
    const WriteItem& write_item) {
  out.add({brackets, 1});
  const std::string inner =
      format.indent ? line_start + *format.indent : std::string();
  for (std::size_t i = 0; i < count; ++i) {
    out.add(i > 0 ? format.item_separator : "");
    out.add(format.indent ? inner : "");
    write_item(i, inner);
  }
  out.add(format.indent && count > 0 ? line_start : "");
  out.add({brackets + 1, 1});
}

void write_json_dict(
    const Dict& dict,
    const JsonFormat& format,
    const std::string& line_start,
    LimitedText& out,
    Budget& budget) {
  std::vector<const std::pair<Value, Value>*> items;
  items.reserve(dict.items().size());
  for (const auto& item : dict.items()) {
    items.push_back(&item);
  }
  if (format.sort_keys) {
    std::stable_sort(
        items.begin(), items.end(), [&](const auto* a, const auto* b) {
          return less(a->first, b->first, budget);
        });
  }
  write_json_items(
      items.size(),
      "{}",
      format,
      line_start,
      out,
      [&](std::size_t i, const std::string& inner) {
        out.add(json_key(items[i]->first, format));
        out.add(format.key_separator);
        write_json(items[i]->second, format, inner, out, budget);
      });
}

void write_json(
    const Value& value,
    const JsonFormat& format,
    const std::string& line_start,
    LimitedText& out,
    Budget& budget) {
  budget.spend_steps();
  if (const Text* text = value.as_text()) {
    out.add(json_text(text->bytes, format.ensure_ascii));
  } else if (const Dict* dict = value.as_dict()) {
    write_json_dict(*dict, format, line_start, out, budget);
  } else if (const Sequence* sequence = value.as_sequence();
             sequence != nullptr && sequence->kind <= SequenceKind::kTuple) {
    write_json_items(
        sequence->items.size(),
        "[]",
        format,
        line_start,
        out,
        [&](std::size_t i, const std::string& inner) {
          write_json(sequence->items[i], format, inner, out, budget);
        });
  } else if (const auto* flag = value.get_if<bool>()) {
    out.add(*flag ? "true" : "false");
  } else if (value.is_none()) {
    out.add("null");
  } else if (const auto* number = value.get_if<std::int64_t>()) {
    out.add(std::to_string(*number));
  } else if (const auto* real = value.get_if<double>()) {
    const std::string shown = float_text(*real);
    out.add(
        shown == "nan"    ? "NaN"
        : shown == "inf"  ? "Infinity"
        : shown == "-inf" ? "-Infinity"
                          : shown);
  } else {
    const auto* undefined = value.get_if<Undefined>();
    TESSERA_FAIL(
        "tojson: {} has no form in JSON; use strings, numbers, bools, none, lists and dicts",
        undefined != nullptr && undefined->reason
            ? "a value that does not exist (" + *undefined->reason + ")"
            : "a value of type " + std::string(type_name(value)));
  }
}

bool equal_items(
    const std::vector<Value>& a,
    const std::vector<Value>& b,
    Budget& budget) {
  if (a.size() != b.size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i], budget)) {
      return false;
    }
  }
  return true;
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.items().size() != b.items().size()) {
    return false;
  }
  for (const auto& [key, value] : a.items()) {
    const Value* other = b.find(key, budget);
    if (other == nullptr || !equal(value, *other, budget)) {
      return false;
    }
  }
  return true;
}

/// -1, 0 or 1; 2 if one is not a number.
int compare_integer_with(std::int64_t a, double b) {
  if (b != b) {
    return 2;
  }
  // Beyond them, all 64-bit integers are on one side.
  if (b >= 9223372036854775808.0) {
    return -1;
  }
  if (b < -9223372036854775808.0) {
    return 1;
  }
  const auto full = static_cast<std::int64_t>(b);
  if (a != full) {
    return a < full ? -1 : 1;
  }
  const double rest = b - static_cast<double>(full);
  return rest > 0 ? -1 : rest < 0 ? 1 : 0;
}

std::optional<int> compare_numbers(const Value& a, const Value& b) {
  const auto first = a.as_integer();
  const auto second = b.as_integer();
  if (first && second) {
    return *first < *second ? -1 : *first > *second ? 1 : 0;
  }
  if (first && b.is<double>()) {
    return compare_integer_with(*first, *b.get_if<double>());
  }
  if (second && a.is<double>()) {
    const int reversed = compare_integer_with(*second, *a.get_if<double>());
    return reversed == 2 ? 2 : -reversed;
  }
  if (a.is<double>() && b.is<double>()) {
    const double x = *a.get_if<double>();
    const double y = *b.get_if<double>();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  return std::nullopt;
}

void check_key(const Value& key) {
  const Sequence* sequence = key.as_sequence();
  const bool is_tuple =
      sequence != nullptr && sequence->kind == SequenceKind::kTuple;
  TESSERA_CHECK(
      key.as_text() != nullptr || key.as_number() || key.is_none() || is_tuple,
      "a value of type {} cannot be the key of a dict; use a string",
      type_name(key));
  if (is_tuple) {
    std::for_each(sequence->items.begin(), sequence->items.end(), check_key);
  }
}

Value json_scalar(
    const nlohmann::ordered_json& json,
    const std::string& place,
    Budget& budget) {
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return None();
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      TESSERA_CHECK(
          number <= static_cast<std::uint64_t>(
                        std::numeric_limits<std::int64_t>::max()),
          "{} is {}, which needs more than 63 bits; write it as a string",
          place,
          number);
      return static_cast<std::int64_t>(number);
    }
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      std::string storage;
      TESSERA_CHECK(
          valid_utf8(text, storage).data() == text.data(),
          "{} is not valid UTF-8; convert it",
          place);
      budget.spend_bytes(text.size());
      return Value::text(text);
    }
    default:
      TESSERA_FAIL("{} is binary, which no template can show", place);
  }
}

Value json_value_at(
    const nlohmann::ordered_json& json,
    const std::string& place,
    int depth,
    Budget& budget) {
  TESSERA_CHECK(
      depth < kMaxValueDepth,
      "{} is nested more than {} levels deep; flatten it",
      place,
      kMaxValueDepth);
  budget.spend_bytes(kBytesPerItem);
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const auto& item : json) {
      items.push_back(json_value_at(
          item, formatted("{}[{}]", place, items.size()), depth + 1, budget));
    }
    return Value::list(std::move(items));
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, item] : json.items()) {
      std::string inner = place;
      inner += ".";
      inner += key;
      dict.set(
          json_scalar(key, inner, budget),
          json_value_at(item, inner, depth + 1, budget),
          budget);
    }
    return Value::dict(std::move(dict));
  }
  return json_scalar(json, place, budget);
}

} // namespace

void Budget::spend_steps(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(steps);
  TESSERA_CHECK(
      steps_ <= max_steps_,
      "the template needs more than {} steps; does it loop without end? Otherwise raise the limit max_steps",
      max_steps_);
}

void Budget::spend_search(std::string_view text, std::string_view part) {
  spend_steps((text.size() / 64) * (part.size() / 64 + 1));
}

void Budget::spend_bytes(std::size_t bytes) {
  TESSERA_CHECK(
      bytes <= static_cast<std::size_t>(max_bytes_ - bytes_),
      "the template makes texts and lists of more than {} bytes; raise the limit max_bytes if they are wanted",
      max_bytes_);
  bytes_ += static_cast<std::int64_t>(bytes);
}

std::optional<std::size_t> Dict::index_of(const Value& key, Budget& budget)
    const {
  if (const Text* text = key.as_text()) {
    const auto found = texts_.find(text->bytes);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  check_key(key);
  for (const std::size_t i : others_) {
    if (equal(items_[i].first, key, budget)) {
      return i;
    }
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  const auto found = index_of(key, budget);
  return found ? &items_[*found].second : nullptr;
}

const Value* Dict::find(const std::string& key) const {
  const auto found = texts_.find(key);
  return found == texts_.end() ? nullptr : &items_[found->second].second;
}

void Dict::set(Value key, Value value, Budget& budget) {
  depth_ =
      std::max(depth_, checked_depth(1 + std::max(key.depth(), value.depth())));
  if (const auto found = index_of(key, budget)) {
    items_[*found].second = std::move(value);
    return;
  }
  budget.spend_bytes(2 * kBytesPerItem);
  if (const Text* text = key.as_text()) {
    budget.spend_bytes(text->bytes.size());
    texts_.emplace(text->bytes, items_.size());
  } else {
    others_.push_back(items_.size());
  }
  items_.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string reason) {
  return Undefined{std::make_shared<const std::string>(std::move(reason))};
}

Value Value::text(std::string bytes, bool is_markup) {
  return std::make_shared<const Text>(Text{std::move(bytes), is_markup});
}

Value Value::sequence(SequenceKind kind, std::vector<Value> items) {
  const int depth = depth_over(items);
  return std::make_shared<const Sequence>(
      Sequence{kind, std::move(items), depth});
}

Value Value::generator(std::vector<Value> items) {
  const int depth = depth_over(items);
  return std::make_shared<Generator>(Generator{std::move(items), 0, depth});
}

Value Value::dict(Dict dict) {
  return std::make_shared<const Dict>(std::move(dict));
}

const Text* Value::as_text() const {
  const auto* found = get_if<std::shared_ptr<const Text>>();
  return found == nullptr ? nullptr : found->get();
}

const Sequence* Value::as_sequence() const {
  const auto* found = get_if<std::shared_ptr<const Sequence>>();
  return found == nullptr ? nullptr : found->get();
}

const Dict* Value::as_dict() const {
  const auto* found = get_if<std::shared_ptr<const Dict>>();
  return found == nullptr ? nullptr : found->get();
}

std::optional<std::int64_t> Value::as_integer() const {
  if (const bool* flag = get_if<bool>()) {
    return *flag ? 1 : 0;
  }
  const auto* number = get_if<std::int64_t>();
  return number == nullptr ? std::nullopt : std::optional(*number);
}

std::optional<double> Value::as_number() const {
  if (const auto integer = as_integer()) {
    return static_cast<double>(*integer);
  }
  const auto* number = get_if<double>();
  return number == nullptr ? std::nullopt : std::optional(*number);
}

int Value::depth() const {
  return std::visit(
      [](const auto& form) -> int {
        using Held = std::decay_t<decltype(form)>;
        if constexpr (
            std::is_same_v<Held, std::shared_ptr<const Sequence>> ||
            std::is_same_v<Held, std::shared_ptr<Generator>> ||
            std::is_same_v<Held, std::shared_ptr<Loop>>) {
          return form->depth;
        } else if constexpr (std::
                                 is_same_v<Held, std::shared_ptr<const Dict>>) {
          return form->depth();
        } else if constexpr (std::is_same_v<
                                 Held,
                                 std::shared_ptr<const Method>>) {
          return form->owner->depth() + 1;
        } else {
          return 0;
        }
      },
      form_);
}

Value from_json(
    const nlohmann::ordered_json& json,
    const std::string& place,
    Budget& budget) {
  return json_value_at(json, place, 0, budget);
}

std::string_view type_name(const Value& value) {
  struct Names {
    std::string_view operator()(const Undefined&) const {
      return "Undefined";
    }
    std::string_view operator()(None) const {
      return "NoneType";
    }
    std::string_view operator()(bool) const {
      return "bool";
    }
    std::string_view operator()(std::int64_t) const {
      return "int";
    }
    std::string_view operator()(double) const {
      return "float";
    }
    std::string_view operator()(const std::shared_ptr<const Text>& text) const {
      return text->is_markup ? "Markup" : "str";
    }
    std::string_view operator()(
        const std::shared_ptr<const Sequence>& sequence) const {
      return label_of(sequence->kind);
    }
    std::string_view operator()(const std::shared_ptr<const Dict>&) const {
      return "dict";
    }
    std::string_view operator()(const std::shared_ptr<const Range>&) const {
      return "range";
    }
    std::string_view operator()(const std::shared_ptr<Generator>&) const {
      return "generator";
    }
    std::string_view operator()(const std::shared_ptr<Namespace>&) const {
      return "Namespace";
    }
    std::string_view operator()(const std::shared_ptr<Loop>&) const {
      return "LoopContext";
    }
    std::string_view operator()(const std::shared_ptr<const Method>&) const {
      return "method";
    }
    std::string_view operator()(const std::shared_ptr<const Macro>&) const {
      return "Macro";
    }
    std::string_view operator()(const Builtin&) const {
      return "function";
    }
  };
  return std::visit(Names(), value.form());
}

bool is_truthy(const Value& value) {
  if (value.is_undefined() || value.is_none()) {
    return false;
  }
  if (const auto number = value.as_number()) {
    return *number != 0;
  }
  if (const Text* text = value.as_text()) {
    return !text->bytes.empty();
  }
  const auto count = length(value);
  return !count || *count != 0;
}

std::string to_text(const Value& value, Budget& budget) {
  if (const Text* text = value.as_text()) {
    budget.spend_steps(text->bytes.size() / 64);
    return text->bytes;
  }
  if (value.is_undefined()) {
    return {};
  }
  if (value.is_none()) {
    return "None";
  }
  if (const auto* flag = value.get_if<bool>()) {
    return *flag ? "True" : "False";
  }
  if (const auto* number = value.get_if<std::int64_t>()) {
    return std::to_string(*number);
  }
  if (const auto* number = value.get_if<double>()) {
    return float_text(*number);
  }
  if (const auto* range = value.get_if<std::shared_ptr<const Range>>()) {
    return range_text(**range);
  }
  TESSERA_CHECK(
      value.as_sequence() != nullptr || value.as_dict() != nullptr,
      "a value of type {} has no text of its own; show a string, a number, a list or a dict (of a generator: `| list`)",
      type_name(value));
  LimitedText out(budget);
  write_repr(value, out, budget);
  return out.take();
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.spend_steps();
  if (const auto order = compare_numbers(a, b)) {
    return *order == 0;
  }
  if (a.form().index() != b.form().index()) {
    return false;
  }
  if (a.is_undefined() || a.is_none()) {
    return true;
  }
  if (const Text* text = a.as_text()) {
    budget.spend_steps(text->bytes.size() / 64);
    return text->bytes == b.as_text()->bytes;
  }
  if (const Sequence* first = a.as_sequence()) {
    const Sequence* second = b.as_sequence();
    const bool compares = first->kind <= SequenceKind::kTuple;
    return first->kind == second->kind &&
           (first == second ||
            (compares && equal_items(first->items, second->items, budget)));
  }
  if (const Dict* first = a.as_dict()) {
    return first == b.as_dict() || equal_dicts(*first, *b.as_dict(), budget);
  }
  return std::visit(
      [&](const auto& form) -> bool {
        using Form = std::decay_t<decltype(form)>;
        const Form& other = *b.get_if<Form>();
        if constexpr (kIsPointer<Form>) {
          return form == other;
        } else if constexpr (std::is_same_v<Form, Builtin>) {
          return form.name == other.name;
        } else {
          return true;
        }
      },
      a.form());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.spend_steps();
  if (const auto order = compare_numbers(a, b)) {
    return *order == -1;
  }
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    budget.spend_steps(a.as_text()->bytes.size() / 64);
    return a.as_text()->bytes < b.as_text()->bytes;
  }
  const Sequence* first = a.as_sequence();
  const Sequence* second = b.as_sequence();
  TESSERA_CHECK(
      first != nullptr && second != nullptr && first->kind == second->kind &&
          first->kind <= SequenceKind::kTuple,
      "values of type {} and {} have no order; compare values of one type",
      type_name(a),
      type_name(b));
  const std::size_t count = std::min(first->items.size(), second->items.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (!equal(first->items[i], second->items[i], budget)) {
      return less(first->items[i], second->items[i], budget);
    }
  }
  return first->items.size() < second->items.size();
}

bool contains(const Value& container, const Value& item, Budget& budget) {
  if (const Text* text = container.as_text()) {
    const Text* part = item.as_text();
    TESSERA_CHECK(
        part != nullptr,
        "a value of type {} cannot be in a string; use a string",
        type_name(item));
    budget.spend_search(text->bytes, part->bytes);
    return text->bytes.find(part->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    return dict->find(item, budget) != nullptr;
  }
  if (const auto* generator = container.get_if<std::shared_ptr<Generator>>()) {
    Generator& rest = **generator;
    while (rest.next < rest.items.size()) {
      if (equal(rest.items[rest.next++], item, budget)) {
        return true;
      }
    }
    return false;
  }
  const std::vector<Value> items = elements(container, budget);
  return std::any_of(items.begin(), items.end(), [&](const Value& other) {
    return equal(other, item, budget);
  });
}

std::vector<Value> elements(const Value& value, Budget& budget) {
  const auto spend = [&](std::size_t count) {
    budget.spend_steps(count);
    budget.spend_bytes(count * kBytesPerItem);
  };
  std::vector<Value> result;
  if (value.is_undefined()) {
    return result;
  }
  if (const Sequence* sequence = value.as_sequence()) {
    spend(sequence->items.size());
    return sequence->items;
  }
  if (const Dict* dict = value.as_dict()) {
    spend(dict->items().size());
    for (const auto& item : dict->items()) {
      result.push_back(item.first);
    }
    return result;
  }
  if (const Text* text = value.as_text()) {
    spend(text->bytes.size());
    for_each_code_point(text->bytes, [&](char32_t, std::size_t at) {
      result.push_back(
          Value::text(text->bytes.substr(at, utf8_length(text->bytes, at))));
    });
    return result;
  }
  if (const auto* range = value.get_if<std::shared_ptr<const Range>>()) {
    spend(static_cast<std::size_t>((*range)->length));
    for (std::int64_t i = 0; i < (*range)->length; ++i) {
      result.push_back(range_item(**range, i));
    }
    return result;
  }
  const auto* generator = value.get_if<std::shared_ptr<Generator>>();
  TESSERA_CHECK(
      generator != nullptr,
      "a value of type {} cannot be iterated over; use a list",
      type_name(value));
  Generator& rest = **generator;
  spend(rest.items.size() - rest.next);
  result.assign(
      rest.items.begin() + static_cast<std::ptrdiff_t>(rest.next),
      rest.items.end());
  rest.next = rest.items.size();
  return result;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || length(value).has_value() ||
         value.is<std::shared_ptr<Generator>>();
}

std::optional<std::int64_t> length(const Value& value) {
  if (value.is_undefined()) {
    return 0;
  }
  if (const Text* text = value.as_text()) {
    return static_cast<std::int64_t>(count_code_points(text->bytes));
  }
  if (const Sequence* sequence = value.as_sequence()) {
    return static_cast<std::int64_t>(sequence->items.size());
  }
  if (const Dict* dict = value.as_dict()) {
    return static_cast<std::int64_t>(dict->items().size());
  }
  if (const auto* range = value.get_if<std::shared_ptr<const Range>>()) {
    return (*range)->length;
  }
  if (const auto* loop = value.get_if<std::shared_ptr<Loop>>()) {
    return static_cast<std::int64_t>((*loop)->items.size());
  }
  return std::nullopt;
}

Value range_item(const Range& range, std::int64_t index) {
  return range.start + range.step * index;
}

std::string to_json(
    const Value& value,
    const JsonFormat& format,
    Budget& budget) {
  LimitedText out(budget);
  write_json(value, format, "\n", out, budget);
  return out.take();
}

} // namespace tessera::text::jinja
