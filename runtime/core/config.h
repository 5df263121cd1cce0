// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ConfigReader` reads options structs from a JSON configuration strictly:
// every value is checked against the type and range of its field, and a key
// that no field has is an error.

#include "tessera/runtime/core/option_fields.h"

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

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

/// A key of a configuration that no field has.
struct UnknownKey {
  std::string path; ///< "optimizer.learning_rat"
  std::string origin; ///< the file, or the override that set it
  std::string here; ///< the key that it is a foreign name of; may be empty
  std::string remedy; ///< "did you mean 'optimizer.learning_rate'?"

  /// "FILE: PATH".
  std::string place() const {
    return origin + ": " + path;
  }
};

/// Reads one JSON object, the fields of a struct at a time:
///
///     ConfigReader config(parse_json(read_text_file(path), path), path);
///     read_fields(config, options);
///     config.finish();
///
/// A key whose value is null counts as absent. Errors name the file (or the
/// override that set the value), the full path ("optimizer.lr"), the value
/// found and what was expected. Copies and the readers of nested objects share
/// one state, so finish() and resolved() of the root cover all of them. Not
/// thread-safe.
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

  /// Reads the fields of a list; see read_fields().
  void read(const OptionList& list) const;

  /// Whether the key is present. Also makes it a known key, which finish()
  /// accepts.
  bool contains(std::string_view key) const;

  /// Returns the reader of a nested object. An absent object reads as an empty
  /// one, so all of its keys can be absent.
  ConfigReader get_object(std::string_view key) const;

  /// Throws Error for a value of the right type and range that is invalid for
  /// another reason. The message is "FILE: PATH is VALUE; " followed by
  /// `expected`.
  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;

  /// Runs a check of values that have been read. Its errors begin with the
  /// whole path of a key; in front comes the file, or the override, that set
  /// it.
  void run_check(const std::function<void()>& check) const;

  /// The keys that nothing has asked for, here or in a nested object. Call it
  /// after everything has been read. The remedy is the key that replaces a
  /// foreign name, the nearest known key, or a key of that name in another
  /// object; failing that, it lists the known keys.
  /// @param foreign names that other libraries use for keys.
  std::vector<UnknownKey> unknown_keys(
      std::span<const ForeignKey> foreign = {}) const;

  /// @throws Error on unknown_keys(), with a line for each.
  void finish(std::span<const ForeignKey> foreign = {}) const;

  /// Returns everything read so far, defaults included, in the order of
  /// reading.
  nlohmann::ordered_json resolved() const;
  /// Replaces what resolved() has of a key, where the default of a field
  /// depends on other values.
  void resolve(std::string_view key, const nlohmann::json& value) const;

 private:
  class Fields;
  struct Node;

  explicit ConfigReader(std::shared_ptr<Node> node);

  std::shared_ptr<Node> node_;
};

/// Reads the fields of a struct. Keys that are absent leave their fields as
/// they are.
/// @throws tessera::Error naming file, path, value and what was expected.
template <typename Options>
void read_fields(const ConfigReader& reader, Options& options) {
  reader.read(list_of(options));
}

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
