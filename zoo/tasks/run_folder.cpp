// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/tasks/run_folder.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

namespace tessera::zoo {

namespace fs = std::filesystem;

bool is_run_folder(const fs::path& folder) {
  if (!fs::exists(folder / "config.json")) {
    return false;
  }
  const auto config = nlohmann::json::parse(
      runtime::read_text_file(folder / "config.json"),
      nullptr,
      /*allow_exceptions=*/false);
  return config.is_object() && config.contains("task") &&
         config.contains("output") && config.contains("training");
}

fs::path model_folder_of(const fs::path& path) {
  if (path.empty() || !is_run_folder(path)) {
    return path;
  }
  if (fs::exists(path / "model" / "config.json")) {
    return path / "model";
  }
  TESSERA_CHECK(
      !fs::exists(path / "adapter"),
      "'{}' is a run that trained an adapter, without model/; train with model.lora.merge=true, or merge it with `tessera convert --merge-lora {}`",
      path.string(),
      (path / "adapter").string());
  TESSERA_FAIL(
      "'{}' is a run of `tessera train` that has not exported a model yet; if it has checkpoints, make a model of the newest with `tessera export {}`, or resume the run with training.resume=true",
      path.string(),
      path.string());
}

} // namespace tessera::zoo
