// SPDX-License-Identifier: Apache-2.0
#pragma once
// matching_files() finds the files that names and patterns stand for.

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::text {

/// Files, and patterns of them with `*`, `?` and `[`, in their order; the files
/// of a pattern are sorted. `**` stands for any folders.
/// Names without such characters are not looked for.
/// @throws tessera::Error naming a pattern that matches none, and a file that
///   is named twice.
std::vector<std::filesystem::path> matching_files(
    const std::vector<std::string>& names);

} // namespace tessera::text
