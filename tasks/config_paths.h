// SPDX-License-Identifier: Apache-2.0
#pragma once
// resolve_config_paths() makes the paths in a configuration relative to the
// working directory.

#include <nlohmann/json_fwd.hpp>

#include <filesystem>

namespace tessera::tasks {

/// Changes the paths of what a configuration of a training run reads: those in
/// a file are relative to its folder. Where there is nothing at such a path,
/// but something at the same path in the working directory, that is taken, and
/// logged. The config.json of a run folder has paths from the working
/// directory, and is left as it is, as are absolute paths and `output.folder`.
/// @param root the object in the file; not what it extends.
void resolve_config_paths(
    nlohmann::json& root,
    const std::filesystem::path& file);

} // namespace tessera::tasks
