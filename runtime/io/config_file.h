// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_config_file()` opens a configuration and those that it extends.

#include "tessera/runtime/core/config.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace tessera::runtime {

/// Changes the object in a file, before it is merged with those of others.
using AdaptConfig = std::function<
    void(nlohmann::json& root, const std::filesystem::path& file)>;

/// A file may name another one, relative to its own folder, as `extends`.
/// Objects of both are merged key by key; any other value replaces that of the
/// file that is extended, and null stands for an absent key. Errors name the
/// file that has the value. `$schema` is for editors and left out.
/// @param overrides see ConfigReader; applied last.
/// @param adapt called with the object of each file; may be empty.
/// @throws tessera::Error naming the file or the override; on files that extend
///   each other.
ConfigReader read_config_file(
    const std::filesystem::path& file,
    std::span<const std::string> overrides = {},
    const AdaptConfig& adapt = {});

} // namespace tessera::runtime
