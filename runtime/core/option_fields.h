// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OptionFields` is shown the fields of an options struct, each with its key,
// range and documentation.

#include "tessera/runtime/core/value_range.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// The key of a field in a configuration.
struct OptionKey {
  // NOLINTNEXTLINE(google-explicit-constructor)
  OptionKey(const char* key, bool is_required = false)
      : name(key), required(is_required) {}
  const char* name;
  bool required; ///< a configuration has to set it
};

/// A key that every configuration has to set.
inline OptionKey required(const char* name) {
  return {name, true};
}

enum class OptionKind { kBool, kInt, kBytes, kNumber, kString, kChoice };

/// How many values of its kind a field has.
enum class OptionShape {
  kOne,
  kArray,
  kOneOrMany, ///< an array; one value alone is an array of it
  kOneOrArray, ///< one value, which means something else than an array of it
  kMap, ///< values by names that are not known here
};

/// What is known of a field besides its value.
struct OptionField {
  OptionKey key;
  const char* doc; ///< one line, in Markdown
  OptionKind kind = OptionKind::kBool;
  OptionShape shape = OptionShape::kOne;
  IntRange integers = {}; ///< of the value, or of each one
  DoubleRange numbers = {}; ///< likewise
  const char* word = nullptr; ///< stands for no number
  int count = 0; ///< of an array's elements: 2 or 3; 0: any
  std::vector<std::string> names = {}; ///< of a choice
};

/// "two numbers", for an array of so many.
inline const char* numbers_text(int count) {
  return count == 2 ? "two numbers" : "three numbers";
}

/// The name that a field of named values has.
struct OptionChoice {
  const char* key;
  std::string name; ///< empty if the field is not set
};

/// The list of fields of a struct is a function beside it:
///
///     void visit_fields(runtime::OptionFields& fields, MuonOptions& options) {
///       fields.field("momentum", options.momentum, {.min = 0}, "of ...");
///       fields.field("nesterov", options.nesterov, "Nesterov's momentum");
///     }
///
/// From it follow read_fields() (config.h), check_fields()
/// (option_check.h), and the schema and the table of keys (option_schema.h).
/// What holds between fields is checked elsewhere.
///
/// An optional value without a value is a key that is absent, and stays so.
class OptionFields {
 public:
  virtual ~OptionFields() = default;

  void field(OptionKey key, bool& value, const char* doc);
  void field(OptionKey key, std::optional<bool>& value, const char* doc);
  void field(OptionKey key, int& value, IntRange range, const char* doc);
  void field(OptionKey key, int64_t& value, IntRange range, const char* doc);
  void field(
      OptionKey key,
      std::optional<int64_t>& value,
      IntRange range,
      const char* doc);
  void field(OptionKey key, double& value, DoubleRange range, const char* doc);
  /// @param word in place of the number: no value.
  void field(
      OptionKey key,
      std::optional<double>& value,
      DoubleRange range,
      const char* doc,
      const char* word = nullptr);
  void field(OptionKey key, std::string& value, const char* doc);
  void field(OptionKey key, std::optional<std::string>& value, const char* doc);
  void field(OptionKey key, std::filesystem::path& value, const char* doc);
  void field(OptionKey key, std::vector<std::string>& value, const char* doc);
  /// The range is that of each element.
  void field(
      OptionKey key,
      std::vector<int64_t>& value,
      IntRange range,
      const char* doc);
  void field(
      OptionKey key,
      std::vector<int>& value,
      IntRange range,
      const char* doc);
  void field(
      OptionKey key,
      std::vector<double>& value,
      DoubleRange range,
      const char* doc);

  /// An array of two numbers.
  void pair(
      OptionKey key,
      double& first,
      double& second,
      DoubleRange range,
      const char* doc);
  /// An array of three numbers.
  void triple(
      OptionKey key,
      double& first,
      double& second,
      double& third,
      DoubleRange range,
      const char* doc);
  /// An array of strings, or a string alone for an array of one.
  void one_or_many(
      OptionKey key,
      std::vector<std::string>& value,
      const char* doc);
  /// A string, or an array of strings, with a meaning of its own. At most one
  /// of both is not empty.
  void one_or_array(
      OptionKey key,
      std::string& one,
      std::vector<std::string>& array,
      const char* doc);
  /// An object whose keys are names of the user's. The range is that of each
  /// value.
  void field(
      OptionKey key,
      std::map<std::string, int64_t>& value,
      IntRange range,
      const char* doc);
  void field(
      OptionKey key,
      std::map<std::string, double>& value,
      DoubleRange range,
      const char* doc);
  /// Bytes, which may be written as "11GB" or "11GiB".
  void bytes(OptionKey key, int64_t& value, int64_t min, const char* doc);
  void bytes(
      OptionKey key,
      std::optional<int64_t>& value,
      int64_t min,
      const char* doc);

  /// A value that has a name. An optional without a value is an absent key,
  /// unless it has a name too.
  template <typename Value>
  OptionChoice choice(
      OptionKey key,
      Value& value,
      const std::vector<std::pair<std::string, std::type_identity_t<Value>>>&
          choices,
      const char* doc);

  /// Fields that exist only where a choice has one of these names.
  template <typename Fields>
  void when(
      const OptionChoice& choice,
      const std::vector<std::string>& names,
      const Fields& fields) {
    if (begin_branch(choice, names)) {
      fields();
      end_branch();
    }
  }

  /// Fields in an object of their own.
  template <typename Options>
  void object(OptionKey key, Options& options, const char* doc) {
    group(key, doc, [&] { visit_fields(*this, options); });
  }
  /// An object whose absence means something.
  template <typename Options>
  void object(OptionKey key, std::optional<Options>& options, const char* doc) {
    if (has_object(key, options.has_value())) {
      object(key, options ? *options : options.emplace(), doc);
    }
  }
  template <typename Fields>
  void group(OptionKey key, const char* doc, const Fields& fields) {
    begin_object({key, doc});
    fields();
    end_object();
  }

  /// An array of objects.
  template <typename Options>
  void objects(OptionKey key, std::vector<Options>& options, const char* doc) {
    options.resize(begin_list({key, doc}, options.size()));
    for (size_t i = 0; i < options.size(); ++i) {
      begin_element(i);
      visit_fields(*this, options[i]);
      end_object();
    }
    end_list();
  }

 protected:
  OptionFields() = default;
  OptionFields(const OptionFields&) = default;
  OptionFields(OptionFields&&) = default;
  OptionFields& operator=(const OptionFields&) = default;
  OptionFields& operator=(OptionFields&&) = default;

  /// @param value as in JSON, without units and with names for choices; null if
  ///   there is none. An implementation may change it, not its type.
  virtual void on_value(const OptionField& field, nlohmann::json& value) = 0;
  /// Whether the fields of a branch are shown.
  virtual bool begin_branch(
      const OptionChoice& choice,
      const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), choice.name) != names.end();
  }
  virtual void end_branch() {}
  virtual bool has_object(OptionKey key, bool has_value) = 0;
  virtual void begin_object(const OptionField& field) = 0;
  /// Also of an element.
  virtual void end_object() = 0;
  /// @return the number of elements to show.
  virtual size_t begin_list(const OptionField& field, size_t size) = 0;
  virtual void begin_element(size_t index) = 0;
  virtual void end_list() = 0;

 private:
  template <typename Value>
  void visit(const OptionField& field, Value& value);
  /// @param name of the value, if it has one; else what it is, or "" if it is
  ///   not set.
  void choose(
      const OptionField& field,
      std::optional<std::string>& name,
      const std::string& nameless);
};

/// A value that has no name in a configuration, for messages: "Half",
/// "value 7".
template <typename Value>
std::string nameless_text(const Value& value) {
  if constexpr (requires { value.has_value(); }) {
    return value ? nameless_text(*value) : "";
  } else if constexpr (requires { std::string(toString(value)); }) {
    return toString(value);
  } else if constexpr (std::is_enum_v<Value>) {
    return "value " + std::to_string(static_cast<int64_t>(value));
  } else {
    return "a value without a name";
  }
}

/// Shows the fields of a struct.
using OptionList = std::function<void(OptionFields& fields)>;

template <typename Options>
OptionList list_of(Options& options) {
  return [&](OptionFields& fields) { visit_fields(fields, options); };
}

template <typename Value>
OptionChoice OptionFields::choice(
    OptionKey key,
    Value& value,
    const std::vector<std::pair<std::string, std::type_identity_t<Value>>>&
        choices,
    const char* doc) {
  OptionField field{key, doc, OptionKind::kChoice};
  std::optional<std::string> name;
  for (const auto& [one, named] : choices) {
    if (!name && named == value) {
      name = one;
    }
    field.names.push_back(one);
  }
  choose(field, name, nameless_text(value));
  for (const auto& [one, named] : choices) {
    if (name == one) {
      value = named;
    }
  }
  return {key.name, name.value_or("")};
}

} // namespace tessera::runtime
