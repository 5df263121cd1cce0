// SPDX-License-Identifier: Apache-2.0
#include "usage_error.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"

#include <algorithm>
#include <cctype>

namespace tessera::tools {

namespace {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
    for (const std::string& name : option->get_snames()) {
      names.push_back("-" + name);
    }
  }
  return names;
}

/// The option that an argument names, or empty: "-1" is a value.
std::string option_in(const std::string& argument) {
  const size_t dashes = std::min(argument.find_first_not_of('-'), size_t{3});
  if (dashes == 0 || dashes > 2 || argument.size() <= dashes ||
      !std::isalpha(static_cast<unsigned char>(argument[dashes]))) {
    return "";
  }
  return dashes == 1 ? argument.substr(0, 2)
                     : argument.substr(0, argument.find('='));
}

/// "; did you mean 'launch'?", or a list of all names.
std::string hint(
    const std::string& name,
    const std::vector<std::string>& known) {
  const std::string nearest = runtime::nearest_name(name, known);
  if (!nearest.empty()) {
    return "; did you mean '" + nearest + "'?";
  }
  std::string all;
  for (const std::string& one : known) {
    all += (all.empty() ? "; available: " : ", ") + one;
  }
  return all;
}

/// Describes the first name that does not exist; empty if all exist.
std::string unknown_name(
    const CLI::App& app,
    const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  std::string path = app.get_name();
  for (const std::string& argument : arguments) {
    if (const std::string option = option_in(argument); !option.empty()) {
      const auto known = options_of(*at);
      if (std::find(known.begin(), known.end(), option) == known.end()) {
        return path + " has no option '" + option + "'" + hint(option, known);
      }
      continue;
    }
    const auto commands = commands_of(*at);
    if (commands.empty()) {
      continue; // a value
    }
    const auto found = std::find_if(
        commands.begin(), commands.end(), [&](const CLI::App* command) {
          return command->get_name() == argument;
        });
    if (found == commands.end()) {
      std::vector<std::string> known;
      for (const CLI::App* command : commands) {
        known.push_back(command->get_name());
      }
      return path + " has no command '" + argument + "'" +
             hint(argument, known);
    }
    at = *found;
    path += " " + argument;
  }
  return "";
}

} // namespace

int report_usage(
    const CLI::App& app,
    const CLI::ParseError& error,
    const std::vector<std::string>& arguments) {
  // Checked first, because --help after an unknown command would print the help
  // of the whole program.
  const std::string wrong = unknown_name(app, arguments);
  if (!wrong.empty()) {
    log_error("{}\nRun with --help for more information.", wrong);
    return kUsageError;
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    return app.exit(error); // prints the help or the version
  }
  log_error("{}\nRun with --help for more information.", error.what());
  return kUsageError;
}

} // namespace tessera::tools
