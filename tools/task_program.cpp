// SPDX-License-Identifier: Apache-2.0
#include "task_program.h"

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/io/config_file.h"

namespace tessera::tools {

std::unique_ptr<TaskProgram> make_task_program(
    const std::filesystem::path& file,
    const std::vector<std::string>& overrides,
    nlohmann::ordered_json* resolved) {
  const runtime::ConfigReader reader =
      runtime::read_config_file(file, overrides);
  switch (reader.get_enum<zoo::TaskKind>("task", zoo::task_names())) {
    case zoo::TaskKind::kLanguageModel:
      return language_model_program(file, overrides, resolved);
    case zoo::TaskKind::kExamples:
      return examples_program(file, overrides, resolved);
    case zoo::TaskKind::kTextClassification:
      break;
  }
  return text_classification_program(file, overrides, resolved);
}

} // namespace tessera::tools
