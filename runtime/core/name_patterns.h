// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NamePattern` matches names of modules, parameters or types; `NamePatterns`
// are those of one option, each of which must match something. <regex> takes
// seconds to compile: it is included here alone, in the .cpp.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// A pattern, compiled once. Cheap to copy; its functions may be called from
/// several threads.
class NamePattern {
 public:
  /// A regular expression (ECMAScript).
  /// @param option for errors, e.g. "optimizer.parameters".
  /// @throws tessera::Error naming the option, the expression and what is wrong
  ///   with it; also if it is empty.
  NamePattern(std::string_view option, const std::string& expression);

  /// A C++ type name as demangled, or what follows some "::" in it. "Impl" at
  /// the end may be omitted: "BertLayer" matches "tessera::BertLayerImpl".
  static NamePattern of_type(std::string name);

  /// A name in which each `*` matches any text without a dot.
  static NamePattern of_glob(const std::string& glob);

  /// Whether it matches the whole name.
  bool matches(std::string_view name) const;
  /// Whether the expression matches some part of the name.
  bool is_found_in(std::string_view name) const;

  /// The name as `replacement` has it, if the expression matches the whole
  /// name: $1 is what the first group matched. Not of types.
  std::optional<std::string> replaced(
      std::string_view name,
      const std::string& replacement) const;

  /// As written.
  const std::string& text() const {
    return text_;
  }
  /// "; the nearest are 'a', 'b'": those of `names` that were probably meant;
  /// with what a `*` matches.
  std::string nearest_hint(const std::vector<std::string>& names) const;

 private:
  struct Compiled;

  enum class Kind { kExpression, kType, kGlob };

  NamePattern(Kind kind, std::string text)
      : kind_(kind), text_(std::move(text)) {}

  Kind kind_ = Kind::kExpression;
  std::string text_;
  std::shared_ptr<const Compiled> compiled_; ///< of an expression or a glob
};

/// The patterns of one option. Remembers which of them have matched.
class NamePatterns {
 public:
  explicit NamePatterns(std::string option) : option_(std::move(option)) {}

  /// Regular expressions that must match a whole path.
  /// @param option for errors, e.g. "optimizer.parameters".
  /// @throws tessera::Error on an empty or malformed pattern, quoting it.
  NamePatterns(std::string option, const std::vector<std::string>& expressions);

  /// Adds a regular expression or, with add_type() and add_glob(), a type name
  /// or a name with `*` (NamePattern::of_glob()), which may be empty: the
  /// root's.
  /// @throws tessera::Error on an empty or malformed one, quoting it.
  void add(const std::string& expression);
  void add(NamePattern pattern);
  void add_type(const std::string& name);
  void add_glob(const std::string& glob);

  size_t size() const {
    return patterns_.size();
  }

  /// Whether pattern `i` matches. If so, it counts as used.
  bool matches(size_t i, const std::string& name);

  /// Returns the index of the first pattern that matches `name`, if any. All
  /// patterns that match count as used.
  std::optional<size_t> first_match(const std::string& name);

  /// The option, for errors.
  const std::string& option() const {
    return option_;
  }
  /// All patterns as written, and whether they have matched something.
  std::map<std::string, bool> uses() const;
  /// Names that not all of the patterns have matched.
  std::vector<std::string> names() const;
  /// NamePattern::nearest_hint() of the pattern with this text, which may be
  /// one of another rank.
  std::string nearest_hint(
      const std::string& text,
      const std::vector<std::string>& names) const;
  /// The patterns that have matched none of the names that they were tested on.
  std::vector<std::string> unused() const;
  /// @throws tessera::Error when a pattern has matched none of the names that
  ///   it was tested on, with the nearest of them.
  void check_all_used() const;

 private:
  struct Entry {
    NamePattern pattern;
    bool used = false;
    std::vector<std::string> seen; ///< names that it did not match
  };

  std::string option_;
  std::vector<Entry> patterns_;
};

} // namespace tessera::runtime
