// SPDX-License-Identifier: Apache-2.0
// `tessera keys [SECTION]`: the keys of configurations, or of a section.

#include "program_main.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/tasks/config_keys.h"
#include "tessera/tasks/task.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::tools {

namespace {

/// "optimizer" and "optimizer.lr" for each key.
std::vector<std::string> keys_and_sections(
    const std::vector<runtime::OptionRow>& rows) {
  std::vector<std::string> names;
  for (const runtime::OptionRow& row : rows) {
    for (size_t dot = row.path.find('.'); dot != std::string::npos;
         dot = row.path.find('.', dot + 1)) {
      names.push_back(row.path.substr(0, dot));
    }
    names.push_back(row.path);
  }
  return names;
}

/// Each key with its default: the lines that are not indented.
std::string first_lines(const std::string& list) {
  std::istringstream lines(list);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(' ')) {
      text += line + "\n";
    }
  }
  return text;
}

} // namespace

int run_keys(int argc, char** argv) {
  CLI::App app("Lists the keys of a configuration", "tessera keys");
  std::string section;
  std::string task;
  bool schema = false;
  bool markdown = false;
  app.add_option("section", section, "A key, or a section such as optimizer");
  CLI::Option* by_task = app.add_option(
      "--task", task, "Only keys of this task, e.g. text_classification");
  app.add_flag("--schema", schema, "Print the JSON Schema, for editors")
      ->excludes(by_task);
  app.add_flag("--markdown", markdown, "Print the table of configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (schema) {
    const auto text = section.empty() ? tasks::config_schema()
                                      : tasks::config_schema(section);
    std::cout << text.dump(0) << "\n";
    return 0;
  }
  const auto all = tasks::config_rows();
  auto rows = runtime::rows_in(all, section);
  if (rows.empty()) {
    const std::string nearest =
        runtime::nearest_name(section, keys_and_sections(all));
    TESSERA_FAIL(
        "there is no key '{}'{}; `tessera keys` lists all",
        section,
        nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
  }
  if (!task.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, kind] : tasks::task_kinds()) {
      names.push_back(name);
    }
    TESSERA_CHECK(
        std::find(names.begin(), names.end(), task) != names.end(),
        "--task is '{}'; the tasks are {}",
        task,
        runtime::join_names(names));
    std::erase_if(rows, [&](const runtime::OptionRow& row) {
      const auto& only = row.only_for; // also names of other choices
      return std::find(only.begin(), only.end(), task) == only.end() &&
             std::find_first_of(
                 only.begin(), only.end(), names.begin(), names.end()) !=
                 only.end();
    });
    TESSERA_CHECK(!rows.empty(), "the task {} has no key '{}'", task, section);
  }
  if (markdown) {
    std::cout << runtime::markdown_table(rows);
  } else if (section.empty()) {
    std::cout
        << first_lines(runtime::key_list(rows))
        << "\n`tessera keys SECTION` says what those of a section mean.\n";
  } else {
    std::cout << runtime::key_list(rows);
  }
  return 0;
}

} // namespace tessera::tools
