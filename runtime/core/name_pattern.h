// SPDX-License-Identifier: Apache-2.0
#pragma once
// A compiled regular expression over names of modules and parameters. <regex>
// takes seconds to compile: it is included here alone, in the .cpp.

#include <memory>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// A regular expression (ECMAScript), compiled once. Cheap to copy; its
/// functions may be called from several threads.
class NamePattern {
 public:
  /// @param option for errors, e.g. "optimizer.parameters".
  /// @throws tessera::Error naming the option, the expression and what is wrong
  ///   with it.
  NamePattern(std::string_view option, const std::string& expression);

  /// Whether it matches the whole name.
  bool matches(std::string_view name) const;
  /// Whether it matches some part of the name.
  bool is_found_in(std::string_view name) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

} // namespace tessera::runtime
