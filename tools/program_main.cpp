// SPDX-License-Identifier: Apache-2.0
// tessera-run COMMAND ARGUMENTS...: the commands that need LibTorch, in one
// program. `tessera COMMAND` starts it.
#include "program_main.h"
#include "usage_error.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/memory/out_of_memory.h"

#include <c10/util/Exception.h>

#include <string>
#include <string_view>

namespace tessera::tools {

namespace {

struct RunCommand {
  std::string_view name;
  int (*run)(int argc, char** argv);
};

constexpr RunCommand kCommands[] = {
    {"train", run_train},
    {"eval", run_eval},
    {"logits", run_logits},
    {"generate", run_generate},
    {"convert", run_convert},
    {"bench", run_bench},
};

int run_command(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  for (const RunCommand& command : kCommands) {
    if (command.name == name) {
      return command.run(argc - 1, argv + 1);
    }
  }
  log_error("tessera-run has no command '{}'; use it through `tessera`.", name);
  return 2;
}

} // namespace

std::optional<int> parse_arguments(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error, {argv + 1, argv + argc});
  }
  return std::nullopt;
}

} // namespace tessera::tools

namespace {

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

} // namespace

// An exception becomes one line on standard error and exit code 1. LibTorch's
// own errors are shown without their stack trace.
int main(int argc, char** argv) {
  try {
    return tessera::tools::run_command(argc, argv);
  } catch (const c10::DistError& error) {
    // The store or a collective lost its peer, which says why it left.
    tessera::runtime::blame_peer();
    tessera::log_error(
        "this rank ended because it lost another one or the connection to it ({}); see the first error of the job for the cause.",
        first_line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    tessera::log_error(
        "{}{}",
        error.what_without_backtrace(),
        tessera::runtime::is_out_of_memory(error)
            ? std::string("\nOut of memory. ") + tessera::runtime::kMemoryRemedy
            : "");
  } catch (const std::exception& error) {
    tessera::log_error("{}", error.what());
  }
  return 1;
}
