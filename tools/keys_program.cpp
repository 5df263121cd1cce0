// SPDX-License-Identifier: Apache-2.0
// `tessera keys [SECTION]`: the keys of configurations.

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
    std::cout << zoo::config_schema().dump(1) << "\n";
    return 0;
  }
  const auto rows = zoo::config_rows();
  const std::string text = markdown ? runtime::markdown_table(rows)
                                    : runtime::key_list(rows, section);
  TESSERA_CHECK(
      !text.empty(), "there is no key '{}'; `tessera keys` lists all", section);
  std::cout << text;
  return 0;
}

} // namespace tessera::tools
