// SPDX-License-Identifier: Apache-2.0
#include "program_main.h"
#include "usage_error.h"

#include "tessera/runtime/comm/exception_text.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

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
    {"inspect", run_inspect},
    {"predict", run_predict},
    {"fetch", run_fetch},
    {"tokens", run_tokens},
    {"tokenize", run_tokenize},
    {"plan", run_plan},
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

/// Behind a bracket that ends an argument while CLI11 parses it, which would
/// take "[a, b]" for a list of values wherever several are allowed.
constexpr char kNoList = '\x1f';

std::string without_mark(std::string text) {
  if (text.ends_with(kNoList)) {
    text.pop_back();
  }
  return text;
}

/// The arguments, in CLI11's reverse order, each of which is one value.
std::vector<std::string> arguments_for(CLI::App& app, int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  bool has_lists = false;
  for (std::string& argument : arguments) {
    const size_t value =
        argument.starts_with("--") && argument.find('=') != std::string::npos
            ? argument.find('=') + 1
            : 0;
    if (argument.substr(value).starts_with('[') && argument.ends_with(']')) {
      argument += kNoList;
      has_lists = true;
    }
  }
  if (has_lists) {
    for (CLI::Option* option : app.get_options()) {
      option->transform(without_mark, "");
    }
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

} // namespace

std::optional<int> parse_arguments(
    CLI::App& app,
    int argc,
    char** argv,
    const std::function<void()>& check) {
  bool checks_only = false;
  app.add_flag("--check", checks_only, kCheckHelp);
  try {
    app.parse(arguments_for(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error, {argv + 1, argv + argc});
  }
  if (!checks_only) {
    return std::nullopt;
  }
  if (check) {
    check();
  }
  return 0;
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
    log_error("{}", runtime::text_of_exception(error));
  }
  return 1;
}

} // namespace tessera::tools
