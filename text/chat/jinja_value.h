// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Value` is a value of a Jinja template, with Python's semantics; `Budget`
// limits what a template may spend.

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::text::jinja {

/// Ends templates that do not end by themselves. Errors of this and of all
/// functions below do not name a place: who evaluates the template adds it.
class Budget {
 public:
  Budget(std::int64_t max_steps, std::int64_t max_bytes)
      : max_steps_(max_steps), max_bytes_(max_bytes) {}

  /// @throws tessera::Error when more than `max_steps` were spent.
  void spend_steps(std::size_t steps = 1);
  /// Of looking for a part at every place of a text.
  void spend_search(std::string_view text, std::string_view part);
  /// Of strings, lists and dicts that the template made, also of those that it
  /// no longer holds.
  /// @throws tessera::Error when more than `max_bytes` were spent.
  void spend_bytes(std::size_t bytes);

 private:
  std::int64_t max_steps_;
  std::int64_t max_bytes_;
  std::int64_t steps_ = 0;
  std::int64_t bytes_ = 0;
};

class Value;

/// What a name, key or attribute that does not exist evaluates to.
struct Undefined {
  std::shared_ptr<const std::string> reason; ///< "'x' is undefined"
};

struct None {};

struct Text {
  std::string bytes; ///< valid UTF-8
  /// Made by the filter `safe`: adding to it escapes HTML.
  bool is_markup = false;
};

enum class SequenceKind { kList, kTuple, kDictKeys, kDictValues, kDictItems };

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;
};

/// In the order of insertion. Keys are strings, numbers, bools, None or tuples.
class Dict {
 public:
  const Value* find(const Value& key, Budget& budget) const;
  const Value* find(const std::string& key) const;
  void set(Value key, Value value, Budget& budget);

  const std::vector<std::pair<Value, Value>>& items() const {
    return items_;
  }
  int depth() const {
    return depth_;
  }

 private:
  std::optional<std::size_t> index_of(const Value& key, Budget& budget) const;

  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, std::size_t> texts_;
  std::vector<std::size_t> others_;
  int depth_ = 1;
};

struct Range {
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::int64_t length = 0;
};

/// What Python makes lazily: it can be iterated over once, and has no length.
struct Generator {
  std::vector<Value> items;
  std::size_t next = 0;
  int depth = 1;
};

/// The only values that a template can change.
struct Namespace {
  std::map<std::string, Value> attributes;
};

/// The variable `loop`.
struct Loop {
  std::vector<Value> items;
  std::size_t index = 0;
  std::int64_t depth0 = 0;
  std::vector<Value> last_changed;
  int depth = 1;
};

/// `value.name`, to be called.
struct Method {
  std::shared_ptr<const Value> owner;
  std::string name;
};

struct Macro; // jinja_evaluate.cpp

/// A function of the environment, e.g. `range`.
struct Builtin {
  std::string_view name; ///< of a literal
};

class Value {
 public:
  using Form = std::variant<
      Undefined,
      None,
      bool,
      std::int64_t,
      double,
      std::shared_ptr<const Text>,
      std::shared_ptr<const Sequence>,
      std::shared_ptr<const Dict>,
      std::shared_ptr<const Range>,
      std::shared_ptr<Generator>,
      std::shared_ptr<Namespace>,
      std::shared_ptr<Loop>,
      std::shared_ptr<const Method>,
      std::shared_ptr<const Macro>,
      Builtin>;

  Value() = default;
  template <typename Alternative>
  requires std::is_constructible_v<Form, Alternative> Value(
      Alternative form) // NOLINT: values are what they hold.
      : form_(std::move(form)) {}

  static Value undefined(std::string reason);
  static Value text(std::string bytes, bool is_markup = false);
  /// @throws tessera::Error if it would be nested too deeply.
  static Value sequence(SequenceKind kind, std::vector<Value> items);
  static Value list(std::vector<Value> items) {
    return sequence(SequenceKind::kList, std::move(items));
  }
  static Value generator(std::vector<Value> items);
  static Value dict(Dict dict);

  const Form& form() const {
    return form_;
  }
  template <typename Alternative>
  bool is() const {
    return std::holds_alternative<Alternative>(form_);
  }
  /// Null if it is of another kind.
  template <typename Alternative>
  const Alternative* get_if() const {
    return std::get_if<Alternative>(&form_);
  }
  /// Null if it is not a string, a list, ...
  const Text* as_text() const;
  const Sequence* as_sequence() const;
  const Dict* as_dict() const;
  bool is_undefined() const {
    return is<Undefined>();
  }
  bool is_none() const {
    return is<None>();
  }
  /// Of a bool, too.
  std::optional<std::int64_t> as_integer() const;
  /// Of a bool or an integer, too.
  std::optional<double> as_number() const;

  /// How deeply containers are nested within it, 0 for a scalar.
  int depth() const;

 private:
  Form form_;
};

/// @param place of the value, for errors, e.g. "messages".
/// @throws tessera::Error if a string is not UTF-8, an integer needs more than
///     63 bits, or it is nested too deeply.
Value from_json(
    const nlohmann::ordered_json& json,
    const std::string& place,
    Budget& budget);

/// "int", "str", "dict", ...: Python's name of the type.
std::string_view type_name(const Value& value);

bool is_truthy(const Value& value);

/// Python's str().
/// @throws tessera::Error for functions and other values without a text of
///     their own.
std::string to_text(const Value& value, Budget& budget);

bool equal(const Value& a, const Value& b, Budget& budget);
/// a < b.
/// @throws tessera::Error if Python does not order them.
bool less(const Value& a, const Value& b, Budget& budget);
/// Python's `item in container`.
bool contains(const Value& container, const Value& item, Budget& budget);

/// What a loop over the value sees. Exhausts a generator.
/// @throws tessera::Error if it cannot be iterated over.
std::vector<Value> elements(const Value& value, Budget& budget);
bool is_iterable(const Value& value);
/// Python's len(); nothing if the type has none.
std::optional<std::int64_t> length(const Value& value);
Value range_item(const Range& range, std::int64_t index);

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent; ///< of one level; nothing: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

/// Python's json.dumps().
std::string to_json(
    const Value& value,
    const JsonFormat& format,
    Budget& budget);

} // namespace tessera::text::jinja
