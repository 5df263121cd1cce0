// SPDX-License-Identifier: Apache-2.0
#pragma once
// `errno_text()` describes an errno value, and `errno_remedy()` says what to do
// about it.

#include <cerrno>
#include <string>
#include <system_error>

namespace tessera::runtime::detail {

/// "No such file or directory (errno 2)".
inline std::string errno_text(int code) {
  return std::generic_category().message(code) + " (errno " +
         std::to_string(code) + ")";
}

/// Returns what to do about a failed operation on a file.
inline const char* errno_remedy(int code) {
  switch (code) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and its folder";
    case EISDIR:
      return "name a file, not a folder";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or choose another disk";
    case EROFS:
      return "choose a folder on a writable file system";
    case EMFILE:
    case ENFILE:
      return "raise the limit on open files (ulimit -n)";
    default:
      return "check the disk and the file system it is on";
  }
}

} // namespace tessera::runtime::detail
