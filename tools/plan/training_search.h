// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_training_run()` makes a run of `tessera train` known to a search of
// plans.

#include "tessera/engine/plan/search/run_settings.h"

#include <filesystem>

namespace tessera::tools {

/// @param config a configuration, read each time.
engine::ReadRun read_training_run(const std::filesystem::path& config);

} // namespace tessera::tools
