// SPDX-License-Identifier: Apache-2.0
// `tessera keys [SECTION]`: the keys of configurations, or of a section.

#include "program_main.h"

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/tasks/config_keys.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>

namespace tessera::tools {

int run_keys(int argc, char** argv) {
  CLI::App app("Lists the keys of a configuration", "tessera keys");
  std::string section;
  bool schema = false;
  bool markdown = false;
  app.add_option("section", section, "A key, or a section such as optimizer");
  app.add_flag("--schema", schema, "Print the JSON Schema, for editors");
  app.add_flag("--markdown", markdown, "Print the table of configs/README.md");
  if (const auto code = parse_arguments(app, argc, argv)) {
    return *code;
  }
  if (schema) {
    const auto text =
        section.empty() ? zoo::config_schema() : zoo::config_schema(section);
    std::cout << text.dump(1) << "\n";
    return 0;
  }
  const auto rows = runtime::rows_in(zoo::config_rows(), section);
  TESSERA_CHECK(
      !rows.empty(), "there is no key '{}'; `tessera keys` lists all", section);
  std::cout
      << (markdown ? runtime::markdown_table(rows) : runtime::key_list(rows));
  return 0;
}

} // namespace tessera::tools
