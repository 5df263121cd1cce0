// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_training_run()` makes a run of `tessera train` known to a search of
// plans.

#include "tessera/planner/search/run_settings.h"

#include <filesystem>

namespace tessera::tasks {

/// @param config a configuration, read each time.
planner::ReadRun read_training_run(const std::filesystem::path& config);

} // namespace tessera::tasks
