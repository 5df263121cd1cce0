// SPDX-License-Identifier: Apache-2.0
// `tessera train CONFIG [key.path=value ...]`: trains a model.

#include "program_main.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/launch/stop_signals.h"
#include "tessera/tasks/run_training.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::tools {

namespace {

/// The first and the last of "10-12", or "10" alone.
std::optional<std::pair<int64_t, int64_t>> parse_steps(
    const std::string& text) {
  const size_t dash = text.find('-');
  int64_t first = 0;
  int64_t last = 0;
  const std::string end = dash == text.npos ? text : text.substr(dash + 1);
  if (!CLI::detail::lexical_cast(text.substr(0, dash), first) ||
      !CLI::detail::lexical_cast(end, last) || first < 1 || last < first) {
    return std::nullopt;
  }
  return std::pair(first, last);
}

} // namespace

int run_train(int argc, char** argv) {
  CLI::App app(
      "Trains a model from a configuration, whose key `task` says on what: "
      "text_classification, question_answering, language_model, supervised "
      "(conversations, prompts and completions), preference (pairs of "
      "answers), reward (the same, for a model that scores them), image_folder or examples (inputs of any model)",
      "tessera train");
  std::string file;
  std::vector<std::string> overrides;
  app.add_option("config", file, "Configuration file (JSON)")->required();
  app.add_option(
      "overrides", overrides, "key.path=value, overrides the file's value");
  bool profiles = false;
  std::string profiled_steps;
  auto* profile = app.add_flag(
      "--profile",
      profiles,
      "Profile steps 10 to 12: time, operations and memory of each layer, and a "
      "trace of each rank for Perfetto, in profile/ of the run folder");
  app.add_option(
         "--profile-steps", profiled_steps, "With --profile: others, as 10-12")
      ->needs(profile)
      ->check(CLI::Validator(
          [](const std::string& text) -> std::string {
            return parse_steps(text)
                       ? ""
                       : "'" + text + "' is not a range of steps, as 10-12";
          },
          ""));
  app.footer("Keys and their defaults: tessera keys, or configs/README.md");
  const auto check = [&] {
    tasks::read_training_config(
        file, overrides, nullptr, tasks::HubFiles::kNone);
  };
  if (const auto code = parse_arguments(app, argc, argv, check)) {
    return *code;
  }
  if (profiles) {
    const auto [first, last] =
        parse_steps(profiled_steps)
            .value_or(std::pair<int64_t, int64_t>(10, 12));
    overrides.push_back(formatted("training.profile_first={}", first));
    overrides.push_back(
        formatted("training.profile_steps={}", last - first + 1));
  }
  const auto result =
      tasks::run_training(tasks::read_training_config(file, overrides));
  const int signal = result.summary.stop_signal;
  return signal == 0 ? 0 : runtime::StopSignals::exit_code(signal);
}

} // namespace tessera::tools
