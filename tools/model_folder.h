// SPDX-License-Identifier: Apache-2.0
#pragma once
// add_model_folder() adds an option that names a model.

#include <CLI/CLI.hpp>

#include <string>

namespace tessera::tools {

/// Adds a required option that takes a Hugging Face folder, or a run folder,
/// for which `folder` becomes the folder of its model.
/// @param folder outlives the parsing.
CLI::Option* add_model_folder(
    CLI::App& app,
    const std::string& name,
    std::string& folder,
    const std::string& description);

} // namespace tessera::tools
