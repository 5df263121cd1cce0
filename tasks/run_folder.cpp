// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/run_folder.h"

#include "tessera/engine/trainer/run_checkpoints.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/json_text.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/runtime/hub/fetch.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/runtime/io/remove_tree.h"
#include "tessera/tasks/run_changes.h"
#include "tessera/tasks/training_config.h"
#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/formats/hf_folder_writer.h"

#include <system_error>
#include <vector>

namespace tessera::tasks {

namespace fs = std::filesystem;

namespace {

/// @throws tessera::Error if the run would overwrite something other than a
///     run.
void check_is_run(const TrainingConfig& config) {
  const auto& folder = config.trainer.run_folder;
  TESSERA_CHECK(
      !fs::exists(folder / "config.json") || is_run_folder(folder),
      "output.folder is '{}', whose config.json is not from a run of `tessera train` and would be overwritten; choose another folder",
      folder.string());
  // Check before training rather than after it.
  if (!config.lora || config.lora->merge) {
    zoo::check_hf_folder(folder / "model");
  }
}

bool has_result(const fs::path& folder) {
  for (const char* result : {"result.json", "model", "adapter"}) {
    if (fs::exists(folder / result)) {
      return true;
    }
  }
  return false;
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) {
    all += "\n  " + line;
  }
  return all;
}

/// Removes the checkpoints of a run that is overwritten, nothing else.
void remove_checkpoints(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    for (const char* prefix : {"step-", ".step-", "replaced-step-"}) {
      if (name.starts_with(prefix)) {
        found.push_back(entry.path());
        break;
      }
    }
  }
  for (const fs::path& path : found) {
    runtime::remove_tree(path);
  }
}

} // namespace

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

fs::path model_folder_of(const fs::path& given) {
  const fs::path path = runtime::local_path(given);
  if (path.empty() || !is_run_folder(path)) {
    return path;
  }
  if (fs::exists(path / "model" / "config.json")) {
    return path / "model";
  }
  TESSERA_CHECK(
      !fs::exists(path / "adapter"),
      "'{}' is a run that trained an adapter, without model/; make one with `tessera export {} model.lora.merge=true`, train with that key, or merge the adapter with `tessera convert --from BASE --merge-lora {} --to FOLDER`, where BASE is the model that it was trained on",
      path.string(),
      path.string(),
      (path / "adapter").string());
  TESSERA_FAIL(
      "'{}' is a run of `tessera train` that has not exported a model yet; if it has checkpoints, make a model of the newest with `tessera export {}`, or resume the run with training.resume=true",
      path.string(),
      path.string());
}

AdaptedFolder adapted_folder_of(const fs::path& given) {
  const fs::path path = runtime::local_path(given);
  const auto is_adapter = [](const fs::path& folder) {
    return fs::exists(folder / "adapter_config.json");
  };
  AdaptedFolder found;
  std::string base;
  if (is_adapter(path) && !fs::exists(path / "config.json")) {
    found.adapter = path;
    const auto file = path / "adapter_config.json";
    base = runtime::parse_json(runtime::read_text_file(file), file.string())
               .value("base_model_name_or_path", "");
  } else if (
      is_run_folder(path) && !fs::exists(path / "model" / "config.json") &&
      is_adapter(path / "adapter")) {
    found.adapter = path / "adapter";
    const auto file = path / "config.json";
    base = runtime::parse_json(runtime::read_text_file(file), file.string())
               .at("model")
               .value("folder", "");
  } else {
    const auto names = fs::exists(path / "config.json")
                           ? std::vector<std::string>()
                           : zoo::adapters_in(path);
    TESSERA_CHECK(
        names.empty(),
        "'{}' is no model, but has the adapters {}: give one of them, such as '{}'",
        path.string(),
        runtime::join_names(names),
        (path / (names.empty() ? "" : names.front())).string());
    return {model_folder_of(path), {}};
  }
  found.model = model_folder_of(runtime::local_model(base));
  TESSERA_CHECK(
      fs::exists(found.model / "config.json"),
      "'{}' is an adapter on the model '{}', which is not there; start in the folder that its path begins at, or merge the adapter with `tessera convert --from BASE --merge-lora {} --to FOLDER`, where BASE is that model",
      found.adapter.string(),
      base,
      found.adapter.string());
  return found;
}

ChosenCheckpoint chosen_checkpoint(
    const fs::path& run,
    const std::string& from,
    const std::vector<std::string>& overrides) {
  check_chooses_no_checkpoint(overrides, "give it as --from, e.g. --from best");
  TESSERA_CHECK(
      fs::exists(run / "config.json"),
      "'{}' has no config.json: give the run folder of `tessera train`, which has the checkpoints",
      run.string());
  const auto found = engine::checkpoint_to_resume(run, from);
  TESSERA_CHECK(
      found.has_value(),
      "'{}' has no checkpoints{}",
      run.string(),
      fs::exists(run / "result.json") ? "; the run has exported its model"
                                      : "");
  ChosenCheckpoint chosen{*found, {"parallel={}", "sharding.shard_ranks=0"}};
  chosen.overrides.insert(
      chosen.overrides.end(), overrides.begin(), overrides.end());
  return chosen;
}

void check_chooses_no_checkpoint(
    const std::vector<std::string>& overrides,
    const std::string& remedy) {
  for (const std::string& given : overrides) {
    nlohmann::json values = nlohmann::json::object();
    runtime::apply_override(values, given);
    const auto training = values.find("training");
    const bool chooses =
        training != values.end() && training->is_object() &&
        (training->contains("resume") || training->contains("resume_from"));
    TESSERA_CHECK(
        !chooses,
        "{} is for `tessera train`, which resumes, and has no effect here; to choose a checkpoint, {}",
        given,
        remedy);
  }
}

RunLock::RunLock(const fs::path& run_folder)
    : lock_(
          run_folder / ".lock",
          formatted("the run folder '{}'", run_folder.string())) {}

bool RunFolder::check(const nlohmann::json& description) {
  check_is_run(config_);
  const auto& trainer = config_.trainer;
  if (fs::is_directory(trainer.run_folder)) {
    lock_.emplace(trainer.run_folder);
  }
  check_earlier_run();
  if (!trainer.resume) {
    return false;
  }
  const auto checkpoint =
      engine::checkpoint_to_resume(trainer.run_folder, trainer.resume_from);
  return checkpoint && check_changes(*checkpoint, description);
}

void RunFolder::check_earlier_run() const {
  const auto& trainer = config_.trainer;
  const fs::path& folder = trainer.run_folder;
  const bool has_checkpoint =
      engine::checkpoint_to_resume(folder, "").has_value();
  TESSERA_CHECK(
      trainer.resume || config_.overwrite || !has_checkpoint,
      "output.folder '{}' contains checkpoints of an earlier run. Resume from them with training.resume=true, choose another folder, or lose them with output.overwrite=true.",
      folder.string());
  TESSERA_CHECK(
      trainer.resume || config_.overwrite || !has_result(folder),
      "output.folder '{}' contains a finished run. Choose another folder, or overwrite the run with output.overwrite=true.",
      folder.string());
  TESSERA_CHECK(
      config_.overwrite || has_checkpoint || !trainer.resume_from.empty() ||
          !has_result(folder),
      "training.resume is true, but output.folder '{}' contains a finished run without checkpoints, which would be overwritten. Choose another folder, or, without training.resume, overwrite the run with output.overwrite=true.",
      folder.string());
}

bool RunFolder::check_changes(
    const fs::path& checkpoint,
    const nlohmann::json& description) const {
  const nlohmann::json saved = engine::saved_description(checkpoint);
  if (!saved.is_object()) {
    log_info(
        "'{}' does not say how it was trained: nothing is compared",
        checkpoint.string());
    return false;
  }
  const RunChanges changes = changes_between(saved, description);
  TESSERA_CHECK(
      changes.refused.empty(),
      "training.resume: '{}' was trained with settings that cannot change. Use the same ones, or another output.folder for a new run:{}",
      checkpoint.string(),
      joined_lines(changes.refused));
  TESSERA_CHECK(
      changes.data.empty() || config_.new_data,
      "training.resume: '{}' was trained with other data. Use the same data, or set training.new_data=true to continue from the first sample of these:{}",
      checkpoint.string(),
      joined_lines(changes.data));
  if (!changes.accepted.empty() || !changes.data.empty()) {
    log_info(
        "resuming with changes since '{}':{}{}",
        checkpoint.string(),
        joined_lines(changes.data),
        joined_lines(changes.accepted));
  }
  return !changes.data.empty();
}

void RunFolder::prepare() {
  const auto& folder = config_.trainer.run_folder;
  std::error_code code;
  fs::create_directories(folder, code);
  TESSERA_CHECK(
      !code,
      "output.folder: cannot create '{}': {}. Choose another one with output.folder=PATH.",
      folder.string(),
      code.message());
  if (!lock_) {
    lock_.emplace(folder);
    check_earlier_run(); // of a run that has started meanwhile
  }
  if (!config_.trainer.resume) {
    remove_checkpoints(engine::checkpoints_of(folder));
    // Scoring requires the results of a finished run.
    for (const char* result : {"result.json", "loss.svg", "report.html"}) {
      fs::remove(folder / result, code);
    }
  }
  // What was meant for this start only would lose this run when its
  // configuration is used again.
  nlohmann::ordered_json kept = config_.resolved;
  kept["output"].erase("overwrite");
  for (const char* key : {"resume", "resume_from", "new_data"}) {
    kept["training"].erase(key);
  }
  runtime::write_file_atomically(folder / "config.json", kept.dump(2) + "\n");
}

std::string newest_checkpoint_text(const fs::path& run_folder) {
  const auto newest = engine::checkpoint_to_resume(run_folder, "");
  return newest
             ? formatted(
                   "the newest checkpoint is '{}': resume with training.resume=true, or make a model of it with `tessera export {}`",
                   newest->string(),
                   run_folder.string())
             : "";
}

} // namespace tessera::tasks
