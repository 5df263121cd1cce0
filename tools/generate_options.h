// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GivenOptions` are the options of zoo::GenerateOptions on a command line.

#include "tessera/zoo/generation/generate_options.h"

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace tessera::tools {

/// Options that are given override those of the model's folder.
class GivenOptions {
 public:
  /// Adds the options to `app`, which outlives this object.
  explicit GivenOptions(CLI::App& app);

  /// @param folder of the model, with its generation_config.json.
  /// @param defaults of what neither says.
  /// @throws tessera::Error on a value out of range, and if an option is given
  ///     that only affects sampling or beam search, which is off.
  zoo::GenerateOptions over(
      const std::string& folder,
      const zoo::GenerateOptions& defaults) const;

  /// Runs a part of the command; in its errors, the options that are given, and
  /// those of remedies, have the names of the command line.
  void run(const std::function<void()>& part) const;

  bool is_given(const char* name) const {
    return app_.count(name) > 0;
  }

 private:
  template <typename Value>
  CLI::Option* add(
      const char* name,
      Value zoo::GenerateOptions::*field,
      const char* help);
  void add_flag(
      const char* name,
      bool zoo::GenerateOptions::*field,
      const char* help);
  template <typename Value>
  void take_if_given(
      const CLI::Option* option,
      Value zoo::GenerateOptions::*field);

  std::string with_option_names(const std::string& text) const;

  CLI::App& app_;
  zoo::GenerateOptions given_;
  std::vector<std::function<void(zoo::GenerateOptions&)>> takes_;
};

} // namespace tessera::tools
