// SPDX-License-Identifier: Apache-2.0
#include "program_main.h"
#include "usage_error.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/peer_failure.h"
#include "tessera/runtime/memory/out_of_memory.h"

#include <c10/util/Exception.h>

#include <cstdlib>
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
    {"export", run_export},
    {"eval", run_eval},
    {"logits", run_logits},
    {"generate", run_generate},
    {"convert", run_convert},
    {"bench", run_bench},
    {"predict", run_predict},
    {"tokens", run_tokens},
    {"keys", run_keys},
};

int run_named(int argc, char** argv) {
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

std::string text_of_exception(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  if (torch_error == nullptr) {
    return error.what();
  }
  const std::string text = torch_error->what_without_backtrace();
  if (dynamic_cast<const c10::DistError*>(torch_error) != nullptr) {
    // The store or a collective lost its peer, which says why it left.
    runtime::blame_peer();
    return formatted(
        "this rank ended because it lost another one or the connection to it ({}); see the first error of the job for the cause.",
        text.substr(0, text.find('\n')));
  }
  return runtime::is_out_of_memory(*torch_error)
             ? formatted("{}\nOut of memory. {}", text, runtime::kMemoryRemedy)
             : text;
}

void check_one_process(const char* command) {
  const char* const ranks = std::getenv("WORLD_SIZE");
  TESSERA_CHECK(
      ranks == nullptr || std::string_view(ranks) == "1",
      "`tessera {}` runs as one process, but there are {}; run it without `tessera launch`",
      command,
      ranks == nullptr ? "" : ranks);
}

int run_command(int argc, char** argv) {
  try {
    return run_named(argc, argv);
  } catch (const std::exception& error) {
    log_error("{}", text_of_exception(error));
  }
  return 1;
}

} // namespace tessera::tools
