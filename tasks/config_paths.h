// SPDX-License-Identifier: Apache-2.0
#pragma once
// resolve_config_paths() makes the paths in a configuration relative to the
// working directory, express_config_paths() to a folder that it is written to.

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

/// Changes the same paths, which are relative to the working directory, to what
/// they are from `folder`.
void express_config_paths(
    nlohmann::json& root,
    const std::filesystem::path& folder);

} // namespace tessera::tasks
