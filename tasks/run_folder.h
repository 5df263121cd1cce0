// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunFolder` protects what runs have left in a run folder; model_folder_of()
// finds the model of a run.

#include "tessera/runtime/io/file_lock.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::tasks {

struct TrainingConfig;

/// Whether a folder is the output.folder of a run of `tessera train`.
bool is_run_folder(const std::filesystem::path& folder);

/// The Hugging Face folder that a path names: `model/` of a run folder, and any
/// other path itself.
/// @throws tessera::Error on a run folder that has no model yet, or only an
///     adapter.
std::filesystem::path model_folder_of(const std::filesystem::path& path);

/// The folder of a model, and of a LoRA adapter on it; the latter may be empty.
struct AdaptedFolder {
  std::filesystem::path model;
  std::filesystem::path adapter;
};

/// As model_folder_of(); but of a run that has only an adapter, and of an
/// adapter's own folder, also the model that the adapter was trained on.
/// @throws tessera::Error as model_folder_of(), or naming that model if it is
///     not there.
AdaptedFolder adapted_folder_of(const std::filesystem::path& path);

/// A checkpoint of a run that is scored or exported, and the overrides of the
/// run's configuration for that: the layout of ranks is the default, because
/// any ranks load what others have saved.
struct ChosenCheckpoint {
  std::filesystem::path path;
  std::vector<std::string> overrides;
};

/// @param from `--from` of a command: "best", "step-100" or a path; empty: the
///     newest checkpoint.
/// @param overrides `key.path=value` each, applied after the layout.
/// @throws tessera::Error if `run` is no run folder or has no such checkpoint,
///     or as check_chooses_no_checkpoint().
ChosenCheckpoint chosen_checkpoint(
    const std::filesystem::path& run,
    const std::string& from,
    const std::vector<std::string>& overrides);

/// Refuses overrides of training.resume and training.resume_from, which are for
/// `tessera train` and would have no effect.
/// @param remedy how the command is given a checkpoint.
/// @throws tessera::Error naming the override and the remedy.
void check_chooses_no_checkpoint(
    const std::vector<std::string>& overrides,
    const std::string& remedy);

/// Locks a run folder for the life of this object. @throws tessera::Error if
/// another run writes to it, naming its pid and host.
class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& run_folder);

 private:
  runtime::FileLock lock_;
};

/// The run folder of a run that trains, on rank 0.
class RunFolder {
 public:
  /// @param config outlives this object.
  explicit RunFolder(const TrainingConfig& config) : config_(config) {}

  /// Checks that the run may write to the folder, and locks it if it exists.
  /// Changes nothing.
  /// @param description of describe_run().
  /// @return whether a resumed run has other data than its checkpoint's.
  /// @throws tessera::Error if the folder is not a run's, is in use, contains
  ///   an earlier run that would be overwritten, or a checkpoint that the
  ///   configuration does not fit.
  bool check(const nlohmann::json& description);

  /// Creates and locks the folder, removes an earlier run that may be
  /// overwritten, except for its exported model, and writes config.json.
  void prepare();

 private:
  void check_earlier_run() const;
  bool check_changes(
      const std::filesystem::path& checkpoint,
      const nlohmann::json& description) const;

  const TrainingConfig& config_;
  std::optional<RunLock> lock_;
};

/// The newest checkpoint of a run and how to go on from it, for messages at the
/// end of a run; empty if there is none.
std::string newest_checkpoint_text(const std::filesystem::path& run_folder);

} // namespace tessera::tasks
