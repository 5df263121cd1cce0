// SPDX-License-Identifier: Apache-2.0
#include "model_folder.h"

#include "tessera/tasks/run_folder.h"

namespace tessera::tools {

CLI::Option* add_model_folder(
    CLI::App& app,
    const std::string& name,
    std::string& folder,
    const std::string& description) {
  return app
      .add_option_function<std::string>(
          name,
          [&folder](const std::string& given) {
            folder = tasks::model_folder_of(given).string();
          },
          description)
      ->required();
}

} // namespace tessera::tools
