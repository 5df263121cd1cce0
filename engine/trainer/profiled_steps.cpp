// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/profiled_steps.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/log.h"
#include "tessera/runtime/io/atomic_file.h"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace tessera::engine {

namespace {

/// What cannot be written is a warning.
void write_profile(
    const StepProfiler& profiler,
    const std::filesystem::path& folder) {
  const StepProfile& profile = profiler.profile();
  try {
    std::error_code failed; // writing says why
    std::filesystem::create_directories(folder, failed);
    profiler.write_trace(
        folder / formatted("trace-rank-{}.json", profile.rank));
    if (profile.rank == 0) {
      runtime::write_file_atomically(folder / "profile.txt", to_text(profile));
      runtime::write_file_atomically(
          folder / "profile.json", to_json(profile).dump(2) + "\n");
    }
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

} // namespace

void ProfiledSteps::begin(int64_t step) {
  if (options_.profile_steps > 0 && step == options_.profile_first) {
    profiler_.emplace(engine_);
  }
}

std::optional<std::string> ProfiledSteps::end(int64_t step) {
  if (!profiler_) {
    return std::nullopt;
  }
  profiler_->end_step();
  return step + 1 >= options_.profile_first + options_.profile_steps
             ? finish()
             : std::nullopt;
}

std::optional<std::string> ProfiledSteps::finish() {
  if (!profiler_) {
    return std::nullopt;
  }
  profiler_->finish();
  const auto folder = options_.run_folder / "profile";
  write_profile(*profiler_, folder);
  std::string text = to_text(profiler_->profile()) +
                     "traces: " + (folder / "trace-rank-*.json").string() +
                     ", for https://ui.perfetto.dev";
  profiler_.reset();
  return text;
}

} // namespace tessera::engine
