// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/io/atomic_file.h"

namespace tessera::tools {

namespace {

/// The value of `task` in a configuration, without reading the rest; empty if
/// it is not a string.
std::string task_of(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides) {
  nlohmann::json config =
      runtime::parse_json(runtime::read_text_file(file), file.string());
  for (const std::string& one : overrides) {
    runtime::apply_override(config, one);
  }
  const auto task = config.find("task");
  return task != config.end() && task->is_string() ? task->get<std::string>()
                                                   : "";
}

} // namespace

std::unique_ptr<TaskProgram> make_task_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const std::string task = task_of(file, overrides);
  if (task == "language_model") {
    return language_model_program(file, overrides, resolved);
  }
  if (task == "examples") {
    return examples_program(file, overrides, resolved);
  }
  // It reports an invalid `task`.
  return text_classification_program(file, overrides, resolved);
}

} // namespace tessera::tools
