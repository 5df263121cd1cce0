// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ConfigReader` reads a JSON configuration strictly: every value is checked
// against its type and range, and a key that is never read is an error.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// Both ends are included.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

/// Both ends are included unless they are open.
struct DoubleRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;
};

/// The name that another library or an older version uses for a key, and the
/// key to write here instead, e.g. {"learning_rate", "optimizer.lr"}. A name
/// with dots is a whole path: {"memory.parameters", "placement.parameters"}.
struct ForeignKey {
  std::string_view name;
  std::string_view here;
};

/// The file that a value is from, by its path, where it is not the one that the
/// configuration is named after.
using ConfigOrigins = std::map<std::string, std::string>;

/// Reads one JSON object, key by key:
///
///     ConfigReader config(parse_json(read_text_file(path), path), path);
///     ConfigReader optimizer = config.get_object("optimizer");
///     options.lr = optimizer.get_double("lr", {.min = 0}, 1e-4);
///     config.finish();
///
/// A getter without a fallback requires the key. A key whose value is null
/// counts as absent. Errors name the file (or the override that set the value),
/// the full path ("optimizer.lr"), the value found and what was expected.
/// Copies and the readers of nested objects share one state, so finish() and
/// resolved() of the root cover all of them. Not thread-safe.
class ConfigReader {
 public:
  /// @param source names the configuration in errors, usually the path of the
  ///   file.
  /// @param overrides `key.path=value` each, applied in this order; see
  ///   apply_override().
  /// @param origins files of values, and of what is in them, that are not from
  ///   `source`.
  /// @throws Error when `root` is not an object or an override is malformed.
  ConfigReader(
      nlohmann::json root,
      std::string source,
      std::span<const std::string> overrides = {},
      ConfigOrigins origins = {});

  /// Whether the key is present. Also makes it a known key, which finish()
  /// accepts.
  bool contains(std::string_view key) const;
  /// Whether its value is a string.
  bool is_string(std::string_view key) const;

  std::string get_string(
      std::string_view key,
      const std::optional<std::string>& fallback = {}) const;

  bool get_bool(std::string_view key, std::optional<bool> fallback = {}) const;

  /// Accepts JSON integers only: 1000, not 1e3.
  int64_t get_int(
      std::string_view key,
      IntRange range = {},
      std::optional<int64_t> fallback = {}) const;

  /// Reads a number of bytes: an integer, or a string such as "11GB" or
  /// "11GiB". resolved() has the integer.
  int64_t get_bytes(
      std::string_view key,
      IntRange range = {},
      std::optional<int64_t> fallback = {}) const;

  double get_double(
      std::string_view key,
      DoubleRange range = {},
      std::optional<double> fallback = {}) const;

  /// Reads a number. Returns no value if the key is absent or holds `word`.
  std::optional<double> get_double_or(
      std::string_view key,
      std::string_view word,
      DoubleRange range = {}) const;

  /// Reads a string and returns the value that `choices` has for it.
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

  /// As above, with the choices in a vector.
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

  /// Reads a string or an array of strings.
  std::vector<std::string> get_string_or_strings(
      std::string_view key,
      const std::vector<std::string>& fallback) const;

  /// `range` applies to each element.
  std::vector<int64_t> get_ints(
      std::string_view key,
      IntRange range = {},
      const std::optional<std::vector<int64_t>>& fallback = {}) const;

  /// `range` applies to each element.
  std::vector<double> get_doubles(
      std::string_view key,
      DoubleRange range = {},
      const std::optional<std::vector<double>>& fallback = {}) const;

  /// Reads an object with any keys. `range` applies to each value.
  std::map<std::string, int64_t> get_int_map(
      std::string_view key,
      IntRange range = {},
      const std::optional<std::map<std::string, int64_t>>& fallback = {}) const;

  /// Likewise.
  std::map<std::string, double> get_double_map(
      std::string_view key,
      DoubleRange range = {},
      const std::optional<std::map<std::string, double>>& fallback = {}) const;

  /// Returns the reader of a nested object. An absent object reads as an empty
  /// one, so all of its keys can have fallbacks.
  ConfigReader get_object(std::string_view key) const;

  /// Returns the readers of a nested array of objects; an absent array is
  /// empty.
  std::vector<ConfigReader> get_objects(std::string_view key) const;

  /// Throws Error for a value of the right type and range that is invalid for
  /// another reason. The message is "FILE: PATH is VALUE; " followed by
  /// `expected`.
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

  /// Runs a check of values that have been read. Its errors begin with the
  /// whole path of a key; in front comes the file, or the override, that set
  /// it.
  void run_check(const std::function<void()>& check) const;

  /// Checks that every key was read. Call it after the last getter.
  /// @param foreign names that other libraries use for keys.
  /// @throws Error on keys that no getter asked for, here or in a nested
  ///   object, with a line for each. It suggests the key that replaces a
  ///   foreign name, the nearest known key, or a key of that name in another
  ///   object; failing that, it lists the known keys.
  void finish(std::span<const ForeignKey> foreign = {}) const;

  /// Returns everything read so far, fallbacks included, in the order of
  /// reading.
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

/// Applies one `key.path=value` from a command line to a configuration and
/// creates missing objects. The value is parsed as JSON; if it is not valid
/// JSON, it is a string. A number in the path is an index into an existing
/// array.
/// @throws Error when there is no '=', a key of the path has characters other
///   than letters, digits, '_' and '-', or the path leads through a value that
///   is neither object nor array, or past the end of an array. `root` is then
///   unchanged.
/// @return the path.
std::string apply_override(
    nlohmann::json& root,
    std::string_view override_text);

} // namespace tessera::runtime
