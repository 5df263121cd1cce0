// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RunCheckpoints` decides when a training run is saved, saves it, and loads
// what a resumed run starts from.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/trainer/job_agreement.h"
#include "tessera/engine/trainer/trainer.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::engine {

/// RUN/checkpoints.
std::filesystem::path checkpoints_of(const std::filesystem::path& run_folder);

/// The checkpoint that a run in this folder resumes from; nothing if there is
/// none.
/// @param resume_from as TrainerOptions::resume_from.
/// @throws tessera::Error if `resume_from` is not a checkpoint.
std::optional<std::filesystem::path> checkpoint_to_resume(
    const std::filesystem::path& run_folder,
    const std::string& resume_from);

/// TrainerOptions::description of the run that saved a checkpoint; null if it
/// had none.
/// @throws tessera::Error as load_run_checkpoint().
nlohmann::json saved_description(const std::filesystem::path& checkpoint);

/// What a checkpoint of a run is loaded for, which decides how a message says
/// to take another one.
enum class CheckpointUse {
  kResume, ///< to train on: the key training.resume_from
  kRead, ///< to score or export it: `--from` of `tessera eval` and `export`
};

/// Loads a checkpoint of a run. Collective; blocks.
/// @throws tessera::Error naming the checkpoint and, if there is one, the next
///   older checkpoint of the run, or of the oldest the next newer, and how to
///   take it.
/// @return its step.
int64_t load_run_checkpoint(
    Engine& engine,
    const std::filesystem::path& checkpoint,
    CheckpointUse use,
    const std::vector<Checkpointable*>& states);

/// The checkpoints of one run of train().
class RunCheckpoints {
 public:
  /// All references must outlive this object. Collective.
  /// @param states saved with the engine.
  RunCheckpoints(
      World& world,
      Engine& engine,
      const TrainerOptions& options,
      std::vector<Checkpointable*> states);

  /// The newest checkpoint of the run; nothing if there is none.
  std::optional<std::filesystem::path> newest() const;

  /// Loads `checkpoint`. Later checkpoints in the same folder, which the run
  /// does not continue, get other names, so that they are not resumed from.
  /// Collective; blocks.
  void load(const std::filesystem::path& checkpoint);

  /// Loads parameters and optimizer state of the best checkpoint, for the end
  /// of a run. Collective; blocks.
  /// @return false, with nothing loaded, if it is not that of `step`, which
  ///   could not be saved.
  bool load_best(int64_t step);

  /// What follows a step.
  struct Decision {
    bool saves = false;
    int stop_signal = 0; ///< the run ends after the step because of it
  };
  /// The same on all ranks. Collective; blocks if anything but the step
  /// decides.
  Decision decide(int64_t step, bool is_last);

  /// The largest result of TrainerOptions::stop_signal on any rank. Collective;
  /// blocks if there may be signals.
  int agreed_signal();

  struct Saved {
    int64_t step = 0;
    std::filesystem::path path; ///< empty if it failed
    std::string text; ///< of the log
  };
  /// Saves. Collective; blocks on the disk. If it fails, training can continue.
  /// @param is_best the checkpoint becomes the best one of the folder.
  Saved save(int64_t step, bool is_best);
  /// Begins to save in the background, which Engine::saves_in_background()
  /// allows. Collective; blocks until the save before is done, and while the
  /// state is copied.
  void begin_save(int64_t step, bool is_best);
  /// What became of begin_save(), told once; nothing while files are written.
  /// Not collective. @param blocks until they are.
  std::optional<Saved> begun_save(bool blocks);

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    int64_t step = 0;
    bool is_best = false;
    Clock::time_point start;
    PendingSave save;
  };

  /// What is saved with the engine.
  std::vector<Checkpointable*> all_states();
  /// Calls `finish`, which returns the checkpoint.
  Saved logged(
      int64_t step,
      bool is_best,
      Clock::time_point start,
      const std::function<std::filesystem::path()>& finish);

  World& world_;
  Engine& engine_;
  const TrainerOptions& options_;
  std::vector<Checkpointable*> states_;
  std::unique_ptr<Checkpointable> description_; ///< null: none, or of rank 0
  std::optional<JobAgreement> agreement_;
  std::optional<Pending> pending_;
  Clock::time_point saved_at_ = Clock::now();
};

} // namespace tessera::engine
