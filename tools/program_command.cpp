// SPDX-License-Identifier: Apache-2.0
// Starts the commands of tessera-run. They are in a separate program because
// they need LibTorch, which launching a job should not load.

#include "command.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/launch/rank_environment.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace tessera::tools {

namespace {

[[noreturn]] void replace_process(
    const std::string& command,
    std::vector<std::string> arguments) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() /
      "tessera-run";
  arguments.insert(arguments.begin(), {program.string(), command});
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  // libgomp reads its own when it is loaded, which is in the next program.
  for (const auto& [name, value] : runtime::default_settings()) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/0);
  }
  ::execv(program.c_str(), pointers.data());
  TESSERA_FAIL(
      "cannot start '{}': {}. It belongs beside the tessera program; build or install it again.",
      program.string(),
      std::strerror(errno));
}

} // namespace

Command add_program_command(
    CLI::App& app,
    const std::string& name,
    const std::string& description) {
  CLI::App* parser = app.add_subcommand(name, description);
  // Everything after the name, --help included, belongs to the program.
  parser->prefix_command();
  parser->set_help_flag();
  return {parser, [parser, name]() -> int {
            replace_process(name, parser->remaining());
          }};
}

} // namespace tessera::tools
