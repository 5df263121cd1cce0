// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/run_checkpoints.h"

#include "tessera/engine/checkpoint/manifest.h"
#include "tessera/engine/report/progress_line.h"
#include "tessera/engine/trainer/best_score.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"

#include <algorithm>
#include <exception>
#include <future>
#include <system_error>
#include <utility>

namespace tessera::engine {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDescription = "run";

/// TrainerOptions::description as state of a checkpoint.
class Description : public Checkpointable {
 public:
  explicit Description(const nlohmann::json& values) : values_(values) {}

  std::string name() const override {
    return kDescription;
  }
  CheckpointState save_state() const override {
    return {values_, {}};
  }
  void load_state(const CheckpointState& /*state*/) override {}

 private:
  const nlohmann::json& values_;
};

/// The checkpoint among `all` of its folder; all.end() if it is not there.
auto position_of(const fs::path& checkpoint, const std::vector<fs::path>& all) {
  return std::find_if(all.begin(), all.end(), [&](const fs::path& one) {
    return one.filename() == checkpoint.filename();
  });
}

/// What one use of a checkpoint is called, and how its user names another.
struct UseText {
  const char* action;
  const char* choice; ///< before a checkpoint's path
};

UseText text_of(CheckpointUse use) {
  return use == CheckpointUse::kResume
             ? UseText{"resuming from", "training.resume_from="}
             : UseText{"reading", "--from "};
}

/// How to take the checkpoint before this one or, of the first, the one after
/// it; empty if there is no other.
std::string other_text(const fs::path& checkpoint, const UseText& use) {
  const auto all = list_checkpoints(checkpoint.parent_path());
  const auto found = position_of(checkpoint, all);
  if (found == all.end() || all.size() < 2) {
    return "";
  }
  const bool is_first = found == all.begin();
  // A path, because a name means a checkpoint of the run's own folder.
  return formatted(
      "\n  The next {} checkpoint: {}{}",
      is_first ? "newer" : "older",
      use.choice,
      (is_first ? std::next(found) : std::prev(found))->string());
}

/// Calls `read`; errors name the checkpoint and another one.
template <typename Read>
auto reading(const fs::path& checkpoint, CheckpointUse use, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const UseText text = text_of(use);
    TESSERA_FAIL(
        "{} '{}': {}{}",
        text.action,
        checkpoint.string(),
        error.what(),
        other_text(checkpoint, text));
  }
}

int64_t bytes_in(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const auto size = entry.file_size(code);
    bytes += code ? 0 : static_cast<int64_t>(size);
  }
  return bytes;
}

/// Renames the checkpoints of a run after the one that it resumes from, unless
/// that is of another run.
void set_aside_later(const fs::path& checkpoint, const fs::path& folder) {
  std::error_code code;
  if (!fs::equivalent(checkpoint.parent_path(), folder, code)) {
    return;
  }
  const auto best = best_checkpoint(folder);
  const auto all = list_checkpoints(folder);
  auto later = position_of(checkpoint, all);
  if (later == all.end()) {
    return;
  }
  for (++later; later != all.end(); ++later) {
    const std::string name = "replaced-" + later->filename().string();
    fs::path target = later->parent_path() / name;
    for (int i = 2; fs::exists(target); ++i) {
      target = later->parent_path() / formatted("{}-{}", name, i);
    }
    fs::rename(*later, target);
    log_info(
        "{} is later than the checkpoint that the run resumes from; it is now {}",
        *later,
        target);
  }
  if (!best || fs::exists(*best)) {
    return;
  }
  // A later checkpoint of the same step would be taken for it.
  unmark_best(folder);
  const auto record = best_record(checkpoint);
  const fs::path before = checkpoint_path(folder, record ? record->step : 0);
  const bool is_there = record && record->step > 0 && fs::exists(before);
  if (is_there) {
    mark_best(before);
  }
  log_info(
      "the best checkpoint was '{}', which is set aside; {}",
      best->filename().string(),
      is_there
          ? formatted("it is '{}' again", before.filename().string())
          : std::string(
                "there is none until a score is better than those before"));
}

} // namespace

fs::path checkpoints_of(const fs::path& run_folder) {
  return run_folder / "checkpoints";
}

std::optional<fs::path> checkpoint_to_resume(
    const fs::path& run_folder,
    const std::string& resume_from) {
  const fs::path folder = checkpoints_of(run_folder);
  if (!resume_from.empty()) {
    // A name among the run's own, or a path.
    const bool is_name = fs::path(resume_from).filename() == resume_from;
    return find_checkpoint(
        is_name ? folder / resume_from : fs::path(resume_from));
  }
  const auto all = list_checkpoints(folder);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

nlohmann::json saved_description(const fs::path& checkpoint) {
  const CheckpointManifest manifest =
      reading(checkpoint, CheckpointUse::kResume, [&] {
        return read_manifest(checkpoint);
      });
  if (manifest.ranks.empty()) {
    return nullptr;
  }
  const auto& states = manifest.ranks.front().states;
  const auto found = states.find(kDescription);
  return found == states.end() ? nlohmann::json() : found->second;
}

int64_t load_run_checkpoint(
    Engine& engine,
    const fs::path& checkpoint,
    CheckpointUse use,
    const std::vector<Checkpointable*>& states) {
  return reading(
      checkpoint, use, [&] { return engine.load(checkpoint, states); });
}

RunCheckpoints::RunCheckpoints(
    World& world,
    Engine& engine,
    const TrainerOptions& options,
    std::vector<Checkpointable*> states)
    : world_(world),
      engine_(engine),
      options_(options),
      states_(std::move(states)) {
  // Ranks may have other paths and other options of memory.
  if (world.rank() == 0 && !options.description.is_null()) {
    description_ = std::make_unique<Description>(options.description);
  }
  if (options.save_minutes > 0 || options.stop_signal) {
    agreement_.emplace(world, "end of a step", engine.watch_failures());
  }
}

std::optional<fs::path> RunCheckpoints::newest() const {
  const auto all = list_checkpoints(checkpoints_of(options_.run_folder));
  return all.empty() ? std::nullopt : std::optional(all.back());
}

void RunCheckpoints::load(const fs::path& checkpoint) {
  load_run_checkpoint(engine_, checkpoint, CheckpointUse::kResume, states_);
  if (world_.rank() == 0) {
    set_aside_later(checkpoint, checkpoints_of(options_.run_folder));
  }
}

bool RunCheckpoints::load_best(int64_t step) {
  const fs::path folder = checkpoints_of(options_.run_folder);
  const auto best = best_checkpoint(folder);
  const bool is_there =
      best && best->filename() == checkpoint_path(folder, step).filename();
  if (is_there) {
    load_run_checkpoint(engine_, *best, CheckpointUse::kRead, {});
  }
  return is_there;
}

RunCheckpoints::Decision RunCheckpoints::decide(int64_t step, bool is_last) {
  Decision decision;
  decision.saves = (is_last && options_.save_last) ||
                   (options_.save_every > 0 && step % options_.save_every == 0);
  if (!agreement_) {
    return decision;
  }
  const std::chrono::duration<double, std::ratio<60>> minutes =
      Clock::now() - saved_at_;
  // One clock decides: that of rank 0.
  const bool is_due = world_.rank() == 0 && options_.save_minutes > 0 &&
                      minutes.count() >= options_.save_minutes;
  const auto agreed = agreement_->max(
      {options_.stop_signal ? options_.stop_signal() : 0, is_due ? 1 : 0});
  decision.stop_signal = static_cast<int>(agreed[0]);
  decision.saves |= agreed[0] != 0 || agreed[1] != 0;
  return decision;
}

int RunCheckpoints::agreed_signal() {
  return options_.stop_signal
             ? static_cast<int>(agreement_->max({options_.stop_signal()})[0])
             : 0;
}

std::vector<Checkpointable*> RunCheckpoints::all_states() {
  std::vector<Checkpointable*> states = states_;
  if (description_) {
    states.push_back(description_.get());
  }
  return states;
}

RunCheckpoints::Saved RunCheckpoints::logged(
    int64_t step,
    bool is_best,
    Clock::time_point start,
    const std::function<fs::path()>& finish) {
  Saved saved{.step = step, .path = {}, .text = {}};
  try {
    saved.path = finish();
    if (is_best && world_.rank() == 0) {
      mark_best(saved.path);
    }
    saved.text = formatted(
        "saved step {} in {} ({}, {:.1f} s)",
        step,
        checkpoints_of(options_.run_folder) / saved.path.filename(),
        format_bytes(bytes_in(saved.path)),
        std::chrono::duration<double>(Clock::now() - start).count());
  } catch (const std::exception& error) {
    saved.text = formatted("step {} was not saved: {}", step, error.what());
  }
  return saved;
}

RunCheckpoints::Saved RunCheckpoints::save(int64_t step, bool is_best) {
  const Saved saved = logged(step, is_best, Clock::now(), [&] {
    return engine_.save(
        checkpoints_of(options_.run_folder), all_states(), options_.keep_last);
  });
  saved_at_ = Clock::now();
  return saved;
}

void RunCheckpoints::begin_save(int64_t step, bool is_best) {
  const auto start = Clock::now();
  try {
    pending_ = {
        step,
        is_best,
        start,
        engine_.save_in_background(
            checkpoints_of(options_.run_folder),
            all_states(),
            options_.keep_last)};
  } catch (const std::exception&) {
    std::promise<fs::path> failed;
    failed.set_exception(std::current_exception());
    pending_ = {step, is_best, start, PendingSave(failed.get_future().share())};
  }
  saved_at_ = Clock::now();
}

std::optional<RunCheckpoints::Saved> RunCheckpoints::begun_save(bool blocks) {
  if (!pending_ || (!blocks && !pending_->save.is_done())) {
    return std::nullopt;
  }
  const Pending pending = *std::exchange(pending_, std::nullopt);
  return logged(pending.step, pending.is_best, pending.start, [&] {
    return pending.save.wait();
  });
}

} // namespace tessera::engine
