// SPDX-License-Identifier: Apache-2.0
#pragma once
// Strict configuration: what a JSON file says is read with its type and range,
// and what nobody reads is an error.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// Both ends belong to the range.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

/// Both ends belong to the range unless open.
struct DoubleRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

/// What another library calls a key, and what to write here in its place:
/// {"learning_rate", "optimizer.lr"}.
struct ForeignKey {
  std::string_view name;
  std::string_view here;
};

/// Reads one JSON object, key by key:
///
///     ConfigReader config(parse_json(read_text_file(path), path), path);
///     ConfigReader optimizer = config.get_object("optimizer");
///     options.lr = optimizer.get_double("lr", {.min = 0}, 1e-4);
///     config.finish();
///
/// A getter without fallback requires the key. A key that holds null counts as
/// absent. Errors name the file (or the override that the value is from), the
/// full path ("optimizer.lr"), the value found and what was expected. Copies
/// and the readers of nested objects share one state, so the root's finish()
/// and resolved() cover all of them. Used by one thread.
class ConfigReader {
 public:
  /// @param source names the configuration in errors: usually the file's path.
  /// @param overrides `key.path=value` each, applied in this order; see
  ///   apply_override().
  /// @throws Error when `root` is not an object or an override is malformed.
  ConfigReader(
      nlohmann::json root,
      std::string source,
      std::span<const std::string> overrides = {});

  /// Whether the key is given; from then on it is a known key.
  bool contains(std::string_view key) const;

  std::string get_string(
      std::string_view key,
      const std::optional<std::string>& fallback = {}) const;

  bool get_bool(std::string_view key, std::optional<bool> fallback = {}) const;

  /// Whole JSON numbers only: 1000, not 1e3.
  int64_t get_int(
      std::string_view key,
      IntRange range = {},
      std::optional<int64_t> fallback = {}) const;

  double get_double(
      std::string_view key,
      DoubleRange range = {},
      std::optional<double> fallback = {}) const;

  /// A number, or `word`, which is also what an absent key means: nothing.
  std::optional<double> get_double_or(
      std::string_view key,
      std::string_view word,
      DoubleRange range = {}) const;

  /// The value that a string stands for.
  template <typename Enum>
  Enum get_enum(
      std::string_view key,
      std::initializer_list<std::pair<const char*, Enum>> choices,
      std::optional<Enum> fallback = {}) const {
    return get_enum<Enum>(
        key,
        std::vector<std::pair<std::string, Enum>>(
            choices.begin(), choices.end()),
        fallback);
  }

  /// The same with a table that stands elsewhere.
  template <typename Enum>
  Enum get_enum(
      std::string_view key,
      const std::vector<std::pair<std::string, Enum>>& choices,
      std::optional<Enum> fallback = {}) const {
    std::vector<std::string> names;
    std::optional<size_t> fallback_index;
    for (const auto& [name, value] : choices) {
      if (fallback == value) {
        fallback_index = names.size();
      }
      names.emplace_back(name);
    }
    return choices[get_choice(key, names, fallback_index)].second;
  }

  std::vector<std::string> get_strings(
      std::string_view key,
      const std::optional<std::vector<std::string>>& fallback = {}) const;

  /// The range is that of each element.
  std::vector<int64_t> get_ints(
      std::string_view key,
      IntRange range = {},
      const std::optional<std::vector<int64_t>>& fallback = {}) const;

  /// The range is that of each element.
  std::vector<double> get_doubles(
      std::string_view key,
      DoubleRange range = {},
      const std::optional<std::vector<double>>& fallback = {}) const;

  /// A nested object; an absent one reads as an empty one, so that all of it
  /// can have fallbacks.
  ConfigReader get_object(std::string_view key) const;

  /// A nested array of objects; an absent one is empty.
  std::vector<ConfigReader> get_objects(std::string_view key) const;

  /// Throws Error for a value that has its type and range but is wrong in some
  /// other way: "FILE: PATH is VALUE; " and `expected`.
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

  /// Call once everything was read.
  /// @param foreign names that people bring along from elsewhere.
  /// @throws Error on a key that no getter asked for, here or in any nested
  /// object, naming what it is called here, the nearest known key, one of that
  /// name in another object, or else all of them.
  void finish(std::span<const ForeignKey> foreign = {}) const;

  /// Everything read so far, fallbacks included, in the order of reading.
  nlohmann::ordered_json resolved() const;

 private:
  struct Node;

  explicit ConfigReader(std::shared_ptr<Node> node);
  size_t get_choice(
      std::string_view key,
      std::span<const std::string> names,
      std::optional<size_t> fallback) const;

  std::shared_ptr<Node> node_;
};

/// Applies one `key.path=value` of a command line to a configuration, creating
/// objects on the way. The value is taken as JSON where it is JSON, else as a
/// string; a number in the path is an index into an array that exists.
/// @throws Error, leaving `root` as it was, when there is no '=', a key of the
/// path is not of letters, digits, '_' and '-', or the path leads through a
/// value that is neither object nor array or out of an array.
/// @return the path.
std::string apply_override(
    nlohmann::json& root,
    std::string_view override_text);

} // namespace tessera
