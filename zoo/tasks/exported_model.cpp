// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/exported_model.h"

#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/models/pretrained.h"

namespace tessera::zoo {

std::string ExportFolders::text() const {
  const std::string both = adapter.empty() || model.empty() ? "" : ", ";
  return adapter.string() + both + model.string();
}

ExportFolders folders_in_run(const TrainingConfig& config) {
  const auto& folder = config.trainer.run_folder;
  ExportFolders folders;
  if (config.lora) {
    folders.adapter = folder / "adapter";
  }
  if (!config.lora || config.lora->merge) {
    folders.model = folder / "model";
  }
  return folders;
}

void export_model(
    const TrainingConfig& config,
    Engine& engine,
    const Model& model,
    const ExportFolders& folders) {
  if (!folders.adapter.empty()) {
    save_lora(engine, model, folders.adapter);
  }
  if (folders.model.empty()) {
    return;
  }
  if (config.lora) {
    save_merged(engine, model, folders.model, config.model_folder);
  } else {
    save_pretrained(engine, model, folders.model, config.model_folder);
  }
}

} // namespace tessera::zoo
