// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_json_lines() reads a file of one JSON object per line.

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>

namespace tessera::zoo {

/// Calls `use` with each object and its line, from 1; empty lines are skipped.
/// @throws Error naming file and line of what is not a JSON object. For CSV
///     files, JSON arrays, and compressed or columnar files, the message has a
///     command that converts them.
void read_json_lines(
    const std::filesystem::path& path,
    const std::function<void(const nlohmann::json& object, int64_t line)>& use);

} // namespace tessera::zoo
