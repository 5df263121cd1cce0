// SPDX-License-Identifier: Apache-2.0
#pragma once
// model_folder_of() finds the model of a run of `tessera train`.

#include <filesystem>

namespace tessera::zoo {

/// Whether a folder is the output.folder of a run of `tessera train`.
bool is_run_folder(const std::filesystem::path& folder);

/// The Hugging Face folder that a path names: `model/` of a run folder, and any
/// other path itself.
/// @throws tessera::Error on a run folder that has no model yet, or only an
///     adapter.
std::filesystem::path model_folder_of(const std::filesystem::path& path);

} // namespace tessera::zoo
