// SPDX-License-Identifier: Apache-2.0
#pragma once
// `remove_tree()` removes a folder with all that is in it.
//
// [Note: remove_all] std::filesystem::remove_all() ends a program that links
// libtorch.so, as one with find_package(Torch) does: the LibTorch wheels export
// functions of an older libstdc++ from it, among them this one, which calls a
// constructor that newer versions have under another name.

#include <filesystem>
#include <system_error>

namespace tessera::runtime {

/// Removes a file, a link or a folder with all that is in it; links are not
/// followed. What does not exist is no error. Removes what it can even if
/// something stays.
/// @param code the first error, else cleared.
void remove_tree(const std::filesystem::path& path, std::error_code& code);

/// @throws Error naming what could not be removed, with the system's reason.
void remove_tree(const std::filesystem::path& path);

} // namespace tessera::runtime
